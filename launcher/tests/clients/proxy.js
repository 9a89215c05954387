// Playwright's `proxy:` setting with credentials. The proxy of the test answers for every site.
const { chromium } = require('playwright-core');
const [executablePath, , picture, server] = process.argv.slice(2);

(async () => {
  const proxy = { server, username: 'user', password: 'pass', bypass: 'unused.example' };
  const browser = await chromium.launch({ executablePath, headless: true, timeout: 60000, proxy });
  const page = await browser.newPage();
  await page.goto('http://93.184.216.34/through');
  await page.click('#button');
  console.log('clicked:', await page.textContent('#result'));
  await page.screenshot({ path: picture });
  const refused = await browser.newContext({ proxy: { server: 'http://other.example:80' } }).catch(error => error.message);
  console.log('context:', typeof refused === 'string' ? refused.split('\n')[0] : 'made');
  await browser.close();
})().catch(error => { console.error(error); process.exit(1); });
