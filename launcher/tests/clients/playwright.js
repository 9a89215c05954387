// Playwright starts the drop-in as it would start Chromium (its default arguments, --no-sandbox among them).
const { chromium } = require('playwright-core');
const fs = require('fs');
const [executablePath, url, picture] = process.argv.slice(2);

(async () => {
  const browser = await chromium.launch({ executablePath, headless: true, timeout: 60000 });
  const page = await (await browser.newContext({ acceptDownloads: true })).newPage();
  await page.goto(url);
  await page.click('#button');
  console.log('clicked:', await page.textContent('#result'));
  await page.screenshot({ path: picture });
  // Playwright names a folder of its own for downloads, which the browser does not see.
  const [download] = await Promise.all([page.waitForEvent('download'), page.click('#download')]);
  console.log('downloaded:', fs.readFileSync(await download.path(), 'utf8'), download.suggestedFilename());
  // A file of the host, which the browser does not see either.
  await page.setInputFiles('#file', process.env.UPLOAD);
  console.log('uploaded:', await page.evaluate(() => document.getElementById('file').files[0].text()));
  const absent = await page.setInputFiles('#file', process.env.UPLOAD + '.absent').catch(error => error.message);
  console.log('absent:', absent.split('\n')[0]);
  console.log('version:', browser.version());
  await browser.close();

  const profile = fs.mkdtempSync(require('os').tmpdir() + '/profile-');
  const context = await chromium.launchPersistentContext(profile, { executablePath, headless: true, timeout: 60000 });
  const second = await context.newPage();
  await second.goto(url);
  console.log('persistent:', await second.title());
  await context.close();
  fs.rmSync(profile, { recursive: true });
})().catch(error => { console.error(error); process.exit(1); });
