'use strict';

// A sender of a Node client: sends 0, 1, 2, ... until its input ends, and prints what became of each.
const { Producer, Message } = require('ali-ons');

const [, , servers, topic] = process.argv;
const quiet = { info() {}, warn() {}, debug() {}, error() {} };
let isDone = false;
process.stdin.on('end', () => { isDone = true; }).resume();

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

async function main() {
  const producer = new Producer({
    nameSrv: servers,
    producerGroup: 'node-senders',
    logger: quiet,
    httpclient: {}, // for the address server, which is not used
    onsAddr: '',
  });
  producer.on('error', () => {});
  await producer.ready();
  for (let number = 0; !isDone; number++) {
    try {
      const result = await producer.send(new Message(topic, 'T', String(number)));
      console.log(result.sendStatus === 'SEND_OK' ? `sent ${number}` : `failed ${number} ${result.sendStatus}`);
    } catch (error) {
      console.log(`failed ${number} ${String(error.message).replace(/\n/g, ' ')}`);
    }
    await pause(5);
  }
  process.exit(0);
}

main().catch((error) => {
  console.log(`stopped ${error.message}`);
  process.exit(1);
});
