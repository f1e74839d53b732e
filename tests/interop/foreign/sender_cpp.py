"""A sender of the C++ client, through its C interface.

Sends 0, 1, 2, ... until its input ends, and prints what became of each.
"""

import sys
import threading
import time

from rocketmq.client import Message, Producer, SendStatus


def main() -> None:
    servers, topic = sys.argv[1:3]
    done = threading.Event()

    def wait() -> None:
        sys.stdin.read()
        done.set()

    threading.Thread(target=wait, daemon=True).start()
    producer = Producer("cpp-senders", timeout=3000)
    producer.set_namesrv_addr(servers)
    producer.start()
    number = 0
    while not done.is_set():
        message = Message(topic)
        message.set_body(str(number))
        try:
            status = producer.send_sync(message).status
            print("sent" if status == SendStatus.OK else "failed", number, flush=True)
        except Exception as error:
            print("failed", number, str(error).replace("\n", " "), flush=True)
        number += 1
        time.sleep(0.005)
    producer.shutdown()


if __name__ == "__main__":
    main()
