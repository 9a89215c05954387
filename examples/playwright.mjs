import { chromium } from "playwright-core";

const browser = await chromium.connectOverCDP(process.env.CDP_ENDPOINT);
const page = await browser.contexts()[0].newPage();
await page.goto(process.argv[2]);
console.log(await page.title());
await browser.close(); // disconnects; the clone goes with `hostctl destroy` or at its deadline
