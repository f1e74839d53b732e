"""The official client for Python on a leash: a command for each line of stdin, JSON on stdout."""

import json
import sys
import threading
import time
from urllib.parse import unquote

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)
from rocketmq.grpc_protocol import FilterType

OUT = sys.stdout
sys.stdout = sys.stderr


def say(event, **values):
    OUT.write(json.dumps({"event": event, **values}) + "\n")
    OUT.flush()


def client_of(args):
    keys = Credentials(args["user"], args["secret"]) if "user" in args else Credentials()
    return ClientConfiguration(args["at"], keys), "tls" in args


def message_of(args, body):
    made = Message()
    made.topic, made.body = args["topic"], body.encode()
    for name in ("tag", "keys"):
        if name in args:
            setattr(made, name, args[name])
    if "color" in args:
        made.add_property("color", args["color"])
    if "group" in args:
        made.message_group = args["group"]
    if "delay" in args:
        made.delivery_timestamp = int(time.time() + int(args["delay"]) / 1000)
    if "priority" in args:
        made.priority = int(args["priority"])
    return made


def filter_of(args):
    kind = FilterType.SQL if "sql" in args else FilterType.TAG
    return FilterExpression(args.get("sql") or args.get("tags") or "*", kind)


def got(message):
    say(
        "got",
        id=message.message_id,
        body=message.body.decode(),
        attempt=message.delivery_attempt,
        tag=message.tag or "",
        keys=list(message.keys or ()),
        color=message.properties.get("color", ""),
        group=message.message_group or "",
    )


def send(args):
    configuration, tls = client_of(args)
    producer = Producer(configuration, (args["topic"],), tls_enable=tls)
    producer.startup()
    try:
        for body in args["bodies"].split(","):
            sent = producer.send(message_of(args, body))
            say("sent", id=sent.message_id, recall=getattr(sent, "recall_handle", "") or "")
    finally:
        producer.shutdown()


def recall(args):
    configuration, tls = client_of(args)
    producer = Producer(configuration, (args["topic"],), tls_enable=tls)
    producer.startup()
    try:
        recalled = producer.recall_message(args["topic"], args["handle"])
        say("recalled", id=getattr(recalled, "message_id", recalled))
    finally:
        producer.shutdown()


class Checker(TransactionChecker):
    def __init__(self, answer):
        self._answer = answer
        self.asked = threading.Event()

    def check(self, half):
        say("asked", body=half.body.decode())
        self.asked.set()
        return getattr(TransactionResolution, self._answer.upper())


def transact(args):
    configuration, tls = client_of(args)
    checker = Checker(args.get("answer", "commit"))
    producer = Producer(configuration, (args["topic"],), checker=checker, tls_enable=tls)
    producer.startup()
    try:
        running = producer.begin_transaction()
        producer.send(message_of(args, args["body"]), running)
        if "end" in args:
            getattr(running, args["end"])()
        elif not checker.asked.wait(float(args["seconds"])):
            raise TimeoutError("not asked")
        else:
            time.sleep(0.5)  # its answer is on its way
    finally:
        producer.shutdown()


def simple(args):
    configuration, tls = client_of(args)
    consumer = SimpleConsumer(
        configuration, args["group"], {args["topic"]: filter_of(args)}, 5, tls_enable=tls
    )
    consumer.startup()
    left, end = int(args["count"]), time.monotonic() + float(args["seconds"])
    try:
        while left > 0 and time.monotonic() < end:
            for message in consumer.receive(min(left, 16), int(args.get("invisible", 30))) or ():
                got(message)
                left -= 1
                if "later" in args and message.delivery_attempt == 1:
                    consumer.change_invisible_duration(message, int(args["later"]))
                elif "keep" not in args:
                    consumer.ack(message)
    finally:
        consumer.shutdown()


class Listener(MessageListener):
    def __init__(self, args):
        self._left = int(args["count"])
        self._failures = int(args.get("failures", 0))
        self._pace = int(args.get("pace", 0)) / 1000
        self.done = threading.Event()

    def consume(self, message):
        got(message)
        time.sleep(self._pace)
        self._left -= 1
        if self._left == 0:
            self.done.set()
        is_bad = message.delivery_attempt <= self._failures
        return ConsumeResult.FAILURE if is_bad else ConsumeResult.SUCCESS


def push(args):
    configuration, tls = client_of(args)
    listener = Listener(args)
    consumer = PushConsumer(
        configuration,
        args["group"],
        listener,
        {args["topic"]: filter_of(args)},
        tls_enable=tls,
    )
    consumer.startup()
    listener.done.wait(float(args["seconds"]))
    time.sleep(0.5)  # the last answer is on its way
    consumer.shutdown()


COMMANDS = {
    "send": send,
    "recall": recall,
    "transact": transact,
    "simple": simple,
    "push": push,
}

say("ready")
for line in sys.stdin:
    command, *words = line.split()
    arguments = {key: unquote(value) for key, _, value in (word.partition("=") for word in words)}
    try:
        COMMANDS[command](arguments)
        say("done")
    except Exception as error:
        say("failed", trace=repr(error))
