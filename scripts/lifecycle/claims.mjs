// Warm creates by a client that does nothing else: the duration of the call itself. A separate process, because one that also
// drives browsers reads replies late.
//
//   claims.mjs SOCKET COUNT     print the milliseconds of each as JSON
import { connect } from "../../hostd/clients/hostd.mjs";
import { filled, sleep } from "./daemon.mjs";

const [socket, count] = process.argv.slice(2);
const client = await connect({ path: socket });
const times = [];
for (let claim = 0; claim <= Number(count); claim++) {
  await filled(client);
  await sleep(200);
  const began = performance.now();
  const { clone } = await client.create({ request_id: `claim-${process.pid}-${claim}` });
  // The first one warms caches and is not counted.
  if (claim > 0) times.push(performance.now() - began);
  if (clone.launch !== "warm") throw new Error(`${clone.name} is ${clone.launch}`);
  await client.destroy({ name: clone.name, clone_id: clone.clone_id });
}
console.log(JSON.stringify(times));
client.close();
