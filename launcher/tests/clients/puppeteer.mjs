// Puppeteer starts the drop-in as it would start Chrome, over a port (its default) or over the pipe.
import puppeteer from 'puppeteer-core';
const [executablePath, url, picture, how] = process.argv.slice(2);

const browser = await puppeteer.launch({ executablePath, headless: true, pipe: how === 'pipe', timeout: 60000 });
try {
  const page = await browser.newPage();
  await page.goto(url);
  await page.click('#button');
  console.log('clicked:', await page.$eval('#result', element => element.textContent));
  await page.screenshot({ path: picture });
  console.log('endpoint:', how === 'pipe' ? 'pipe' : browser.wsEndpoint());
} finally {
  await browser.close();
}
