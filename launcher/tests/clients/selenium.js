// ChromeDriver starts the drop-in as it would start Chrome and finds its port in the file DevToolsActivePort.
const { Builder, By, until } = require('selenium-webdriver');
const chrome = require('selenium-webdriver/chrome');
const fs = require('fs');
const [executable, url, picture] = process.argv.slice(2);

(async () => {
  const options = new chrome.Options().setChromeBinaryPath(executable).addArguments('--headless=new');
  const service = new chrome.ServiceBuilder('/usr/bin/chromedriver');
  const driver = await new Builder().forBrowser('chrome').setChromeOptions(options).setChromeService(service).build();
  try {
    await driver.get(url);
    await driver.findElement(By.id('button')).click();
    console.log('clicked:', await driver.findElement(By.id('result')).getText());
    fs.writeFileSync(picture, await driver.takeScreenshot(), 'base64');
    const input = await driver.findElement(By.id('file'));
    await input.sendKeys(process.env.UPLOAD);
    console.log('uploaded:', await driver.executeScript('return arguments[0].files[0].text()', input));
    console.log('browser:', (await driver.getCapabilities()).get('browserVersion'));
  } finally {
    await driver.quit();
  }
})().catch(error => { console.error(error); process.exit(1); });
