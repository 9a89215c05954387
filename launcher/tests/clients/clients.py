"""A client in Python starts the drop-in as it would start Chrome."""
import asyncio
import base64
import os
import sys

executable, url, picture, name = sys.argv[1:5]
SHOWN = "document.querySelector('#result').textContent"


async def with_driver(driver):
    """nodriver and zendriver: both send --remote-allow-origins=* and give the port five tries of half a second."""
    browser = await driver.start(browser_executable_path=executable, headless=True)
    page = await browser.get(url)
    await (await page.select('#button')).click()
    print('clicked:', await page.evaluate(SHOWN))
    await page.save_screenshot(picture, format='png')
    stopping = browser.stop()
    if stopping is not None:
        await stopping


async def with_pyppeteer():
    from pyppeteer import launch
    browser = await launch(executablePath=executable, headless=True)
    page = await browser.newPage()
    await page.goto(url)
    await page.click('#button')
    print('clicked:', await page.evaluate(SHOWN))
    await page.screenshot(path=picture)
    await browser.close()


async def with_browser_use():
    """As in a container: it then adds --no-sandbox, --disable-gpu-sandbox, --no-zygote and others."""
    os.environ.update(IN_DOCKER='true', ANONYMIZED_TELEMETRY='false')
    from browser_use import BrowserProfile, BrowserSession
    # The extensions would be downloaded from a server that tests do not reach.
    profile = BrowserProfile(executable_path=executable, headless=True, enable_default_extensions=False)
    session = BrowserSession(browser_profile=profile)
    await session.start()
    await session.navigate_to(url)
    page = await session.get_current_page()
    await page.evaluate("() => document.querySelector('#button').click()")
    print('clicked:', await page.evaluate(f'() => {SHOWN}'))
    with open(picture, 'wb') as file:
        file.write(base64.b64decode(await page.screenshot()))
    await session.kill()


if name == 'nodriver':
    import nodriver
    asyncio.run(with_driver(nodriver))
elif name == 'zendriver':
    import zendriver
    asyncio.run(with_driver(zendriver))
elif name == 'pyppeteer':
    asyncio.run(with_pyppeteer())
elif name == 'browser-use':
    asyncio.run(with_browser_use())
else:
    sys.exit(f'unknown client {name}')
