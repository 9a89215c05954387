// Stagehand starts the drop-in over a port and loads its extension, which connects to the browser's own port.
import { localBrowser, Stagehand } from '@browserbasehq/stagehand';
import fs from 'node:fs';
const [executablePath, url, picture] = process.argv.slice(2);

const browser = await localBrowser.launch({ executablePath, headless: true });
try {
  // No task is given to the model, so it is never called.
  await Stagehand.create({ browser, model: { modelName: 'openai/gpt-4o-mini', apiKey: 'unused' } });
  const [page] = await browser.context.pages();
  await page.goto(url);
  await page.locator('#button').click();
  console.log('clicked:', await page.locator('#result').textContent());
  fs.writeFileSync(picture, Buffer.from(await page.screenshot(), 'base64'));
} finally {
  await browser.close();
}
