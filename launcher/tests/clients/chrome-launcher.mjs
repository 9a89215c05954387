// chrome-launcher writes files into the profile folder, starts the drop-in and waits until the port answers. Lighthouse
// drives the same browser.
import * as chromeLauncher from 'chrome-launcher';
import lighthouse from 'lighthouse';
import puppeteer from 'puppeteer-core';
const [chromePath, url, picture] = process.argv.slice(2);

const chrome = await chromeLauncher.launch({ chromePath, chromeFlags: ['--headless=new'], logLevel: 'error' });
try {
  const { lhr } = await lighthouse(url, { port: chrome.port, onlyAudits: ['document-title'], logLevel: 'error' });
  console.log('lighthouse:', lhr.audits['document-title'].score, lhr.finalDisplayedUrl);
  const browser = await puppeteer.connect({ browserURL: `http://127.0.0.1:${chrome.port}` });
  const page = await browser.newPage();
  await page.goto(url);
  await page.click('#button');
  console.log('clicked:', await page.$eval('#result', element => element.textContent));
  await page.screenshot({ path: picture });
  await browser.disconnect();
} finally {
  await chrome.kill();
}
