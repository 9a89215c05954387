// Puppeteer starts the drop-in as it would start Chrome, over a port (its default) or over the pipe.
import fs from 'node:fs';
import path from 'node:path';
import puppeteer from 'puppeteer-core';
const [executablePath, url, picture, how] = process.argv.slice(2);

const browser = await puppeteer.launch({ executablePath, headless: true, pipe: how === 'pipe', timeout: 60000 });
try {
  const page = await browser.newPage();
  await page.goto(url);
  await page.click('#button');
  console.log('clicked:', await page.$eval('#result', element => element.textContent));
  await page.screenshot({ path: picture });
  // Files of the host, which the browser does not see: one is uploaded, one is downloaded.
  await (await page.$('#file')).uploadFile(process.env.UPLOAD);
  console.log('uploaded:', await page.$eval('#file', input => input.files[0].text()));
  const session = await browser.target().createCDPSession();
  const downloadPath = path.join(path.dirname(picture), 'downloads');
  await session.send('Browser.setDownloadBehavior', { behavior: 'allow', downloadPath, eventsEnabled: true });
  const done = new Promise(resolve => session.on('Browser.downloadProgress', event => {
    if (event.state === 'completed') resolve(event.filePath);
  }));
  await page.click('#download');
  const file = await done;
  console.log('downloaded:', path.relative(downloadPath, file), fs.readFileSync(file, 'utf8'));
  console.log('endpoint:', how === 'pipe' ? 'pipe' : browser.wsEndpoint());
} finally {
  await browser.close();
}
