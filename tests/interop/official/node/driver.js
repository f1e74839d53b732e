// The official client for Node.js on a leash: a command for each line of stdin, JSON on stdout.
'use strict';

const readline = require('readline');
const {
  ConsumeResult, FilterExpression, Producer, PushConsumer, SimpleConsumer,
} = require('./target/node_modules/rocketmq-client-nodejs');

const COMMIT = 1;
const ROLLBACK = 2;
const SQL = 2;
const silent = { info() {}, warn() {}, debug() {}, error(...words) { console.error(...words); } };
const say = (event, values = {}) => process.stdout.write(JSON.stringify({ event, ...values }) + '\n');
const pause = ms => new Promise(resolve => { setTimeout(resolve, ms); });

function common(args) {
  const options = { endpoints: args.at, logger: silent, sslEnabled: 'tls' in args };
  if (args.user) options.sessionCredentials = { accessKey: args.user, accessSecret: args.secret };
  return options;
}

function message(args, body) {
  const made = { topic: args.topic, body: Buffer.from(body) };
  if (args.tag) made.tag = args.tag;
  if (args.keys) made.keys = [args.keys];
  if (args.color) made.properties = new Map([['color', args.color]]);
  if (args.group) made.messageGroup = args.group;
  if (args.delay) made.deliveryTimestamp = new Date(Date.now() + Number(args.delay));
  if (args.priority) made.priority = Number(args.priority);
  return made;
}

function subscriptions(args) {
  const expression = args.sql ? new FilterExpression(args.sql, SQL) : args.tags || '*';
  return new Map([[args.topic, expression]]);
}

function got(received) {
  say('got', {
    id: received.messageId,
    body: received.body.toString(),
    attempt: received.deliveryAttempt,
    tag: received.tag || '',
    keys: received.keys,
    color: received.properties.get('color') || '',
    group: received.messageGroup || '',
  });
}

async function produce(args, checker, work) {
  const producer = new Producer({ ...common(args), topics: [args.topic], topic: args.topic, checker });
  await producer.startup();
  try {
    await work(producer);
  } finally {
    await producer.shutdown();
  }
}

const commands = {
  send: args => produce(args, undefined, async producer => {
    for (const body of args.bodies.split(',')) {
      const sent = await producer.send(message(args, body));
      say('sent', { id: sent.messageId, recall: sent.recallHandle || '' });
    }
  }),

  recall: args => produce(args, undefined, async producer => {
    const recalled = await producer.recallMessage(args.topic, args.handle);
    say('recalled', { id: recalled.messageId });
  }),

  async transact(args) {
    let tell;
    const asked = new Promise(resolve => { tell = resolve; });
    const checker = {
      async check(half) {
        say('asked', { body: half.body.toString() });
        tell(true);
        return args.answer === 'rollback' ? ROLLBACK : COMMIT;
      },
    };
    await produce(args, checker, async producer => {
      const transaction = producer.beginTransaction();
      await producer.send(message(args, args.body), transaction);
      if (args.end) {
        await transaction[args.end]();
      } else {
        const isAsked = await Promise.race([asked, pause(Number(args.seconds) * 1000)]);
        if (!isAsked) throw new Error('not asked');
        await pause(500); // its answer is on its way
      }
    });
  },

  async simple(args) {
    const consumer = new SimpleConsumer({
      ...common(args),
      consumerGroup: args.group,
      subscriptions: subscriptions(args),
      awaitDuration: 5000,
    });
    await consumer.startup();
    const end = Date.now() + Number(args.seconds) * 1000;
    let left = Number(args.count);
    try {
      while (left > 0 && Date.now() < end) {
        const invisible = Number(args.invisible || 30) * 1000;
        for (const received of await consumer.receive(Math.min(left, 16), invisible)) {
          got(received);
          left -= 1;
          if (args.later && received.deliveryAttempt === 1) {
            await consumer.changeInvisibleDuration(received, Number(args.later) * 1000);
          } else if (!('keep' in args)) {
            await consumer.ack(received);
          }
        }
      }
    } finally {
      await consumer.shutdown();
    }
  },

  async push(args) {
    let left = Number(args.count);
    let finish;
    const done = new Promise(resolve => { finish = resolve; });
    const consumer = new PushConsumer({
      ...common(args),
      consumerGroup: args.group,
      subscriptions: subscriptions(args),
      messageListener: {
        async consume(received) {
          got(received);
          await pause(Number(args.pace || 0));
          left -= 1;
          if (left === 0) finish();
          const isBad = received.deliveryAttempt <= Number(args.failures || 0);
          return isBad ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
        },
      },
    });
    await consumer.startup();
    await Promise.race([done, pause(Number(args.seconds) * 1000)]);
    await pause(500); // the last answer is on its way
    await consumer.shutdown();
  },
};

async function main() {
  say('ready');
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const [command, ...words] = line.split(' ');
    const args = {};
    for (const word of words) {
      const at = word.indexOf('=');
      args[word.slice(0, at)] = decodeURIComponent(word.slice(at + 1));
    }
    try {
      await commands[command](args);
      say('done');
    } catch (error) {
      say('failed', { trace: String(error.stack || error) });
    }
  }
  process.exit(0);
}

main();
