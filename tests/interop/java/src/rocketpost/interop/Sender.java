package rocketpost.interop;

import java.nio.charset.StandardCharsets;
import java.util.concurrent.TimeUnit;

import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;

/** Sends 0, 1, 2, ... until its input ends, and prints what became of each. */
final class Sender {
    private static volatile boolean isDone;

    private Sender() {
    }

    public static void main(String[] args) throws Exception {
        Thread waiting = new Thread(Sender::waitForEnd);
        waiting.setDaemon(true);
        waiting.start();
        DefaultMQProducer producer = new DefaultMQProducer("java-senders");
        producer.setNamesrvAddr(args[0]);
        producer.start();
        for (int number = 0; !isDone; number++) {
            send(producer, args[1], number);
            TimeUnit.MILLISECONDS.sleep(5);
        }
        producer.shutdown();
    }

    private static void send(DefaultMQProducer producer, String topic, int number) throws InterruptedException {
        byte[] body = String.valueOf(number).getBytes(StandardCharsets.UTF_8);
        try {
            SendResult result = producer.send(new Message(topic, body));
            boolean isStored = result.getSendStatus() == SendStatus.SEND_OK;
            System.out.println((isStored ? "sent " : "failed ") + number + " " + result.getSendStatus());
        } catch (InterruptedException interrupted) {
            throw interrupted;
        } catch (Exception failure) {
            System.out.println("failed " + number + " " + String.valueOf(failure).replace('\n', ' '));
        }
    }

    private static void waitForEnd() {
        try {
            while (System.in.read() >= 0) {
                continue;
            }
        } catch (java.io.IOException closed) {
            // The other side is gone, which is the end as well.
        }
        isDone = true;
    }
}
