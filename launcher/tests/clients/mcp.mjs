// An MCP server starts the drop-in with its default profile, which is below the home folder.
import { spawn } from 'node:child_process';
import { createRequire } from 'node:module';
import fs from 'node:fs';
import path from 'node:path';
import readline from 'node:readline';
const [executable, url, picture, name] = process.argv.slice(2);

const servers = {
  '@playwright/mcp': {
    program: 'cli.js', option: '--executable-path', open: 'browser_navigate', run: 'browser_evaluate',
    screenshot: 'browser_take_screenshot', more: [],
  },
  'chrome-devtools-mcp': {
    program: 'build/src/bin/chrome-devtools-mcp.js', option: '--executablePath', open: 'navigate_page',
    run: 'evaluate_script', screenshot: 'take_screenshot', more: ['--no-usage-statistics', '--no-performance-crux'],
  },
};
const server = servers[name];
const root = path.dirname(createRequire(import.meta.url).resolve(`${name}/package.json`));
const child = spawn(process.execPath, [path.join(root, server.program), '--headless', server.option, executable, ...server.more], {
  stdio: ['pipe', 'pipe', 'inherit'],
  cwd: path.dirname(picture),
});
const waiting = new Map();
readline.createInterface({ input: child.stdout }).on('line', line => {
  const message = JSON.parse(line);
  waiting.get(message.id)?.(message);
});
let last = 0;
const send = message => child.stdin.write(JSON.stringify({ jsonrpc: '2.0', ...message }) + '\n');
const call = (method, params) => new Promise(done => {
  last += 1;
  waiting.set(last, done);
  send({ id: last, method, params });
});
const tool = async (name, values) => {
  const answer = await call('tools/call', { name, arguments: values });
  if (answer.error || answer.result.isError) throw new Error(`${name}: ${JSON.stringify(answer)}`);
  return answer.result.content;
};
await call('initialize', { protocolVersion: '2025-06-18', capabilities: {}, clientInfo: { name: 'test', version: '1' } });
send({ method: 'notifications/initialized' });
const page = name === 'chrome-devtools-mcp' ? { pageId: 1 } : {};
await tool(server.open, { url, ...page });
const script = "() => { document.getElementById('button').click(); return 'result=' + document.getElementById('result').textContent; }";
const shown = JSON.stringify(await tool(server.run, { function: script, ...page }));
console.log('clicked:', /result=(\w+)/.exec(shown)?.[1]);
const image = (await tool(server.screenshot, { ...page })).find(part => part.type === 'image');
fs.writeFileSync(picture, Buffer.from(image.data, 'base64'));
child.stdin.end();
await new Promise(done => child.once('exit', done));
