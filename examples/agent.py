import asyncio, os, sys
from browser_use import BrowserSession  # an agent takes it: Agent(browser_session=browser, …)

async def main():
    browser = BrowserSession(cdp_url=os.environ["CDP_ENDPOINT"])
    await browser.start()
    await browser.navigate_to(sys.argv[1])
    page = await browser.get_current_page()
    print(await page.evaluate("() => document.title"))
    await browser.stop()

asyncio.run(main())
