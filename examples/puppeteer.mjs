import puppeteer from "puppeteer-core";

const browser = await puppeteer.connect({ browserWSEndpoint: process.env.CDP_ENDPOINT });
const page = await browser.newPage();
await page.goto(process.argv[2]);
console.log(await page.title());
await browser.disconnect();
