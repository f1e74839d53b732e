package rocketpost.official;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Collections;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientConfigurationBuilder;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.StaticSessionCredentialsProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.ProducerBuilder;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;
import rocketpost.interop.Json;

/** The official client for Java on a leash: a command for each line of stdin, JSON on stdout. */
public final class Driver {
    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    private static final PrintStream OUT = System.out;

    private final Map<String, String> args;

    private Driver(Map<String, String> args) {
        this.args = args;
    }

    public static void main(String[] words) throws Exception {
        System.setOut(System.err);
        say("ready");
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            try {
                run(line);
                say("done");
            } catch (Throwable error) {
                say("failed", "trace", String.valueOf(error));
            }
        }
        System.exit(0);
    }

    private static void run(String line) throws Exception {
        String[] words = line.split(" ");
        Map<String, String> args = new HashMap<>();
        for (int at = 1; at < words.length; at++) {
            int equals = words[at].indexOf('=');
            args.put(words[at].substring(0, equals), URLDecoder.decode(words[at].substring(equals + 1), "UTF-8"));
        }
        Driver driver = new Driver(args);
        switch (words[0]) {
            case "send": driver.send(); break;
            case "recall": driver.recall(); break;
            case "transact": driver.transact(); break;
            case "simple": driver.simple(); break;
            case "push": driver.push(); break;
            default: throw new IllegalArgumentException(words[0]);
        }
    }

    private static void say(String event, Object... pairs) {
        Map<String, Object> values = new LinkedHashMap<>();
        values.put("event", event);
        for (int at = 0; at < pairs.length; at += 2) {
            values.put((String) pairs[at], pairs[at + 1]);
        }
        synchronized (OUT) {
            OUT.println(Json.text(values));
            OUT.flush();
        }
    }

    private static void got(MessageView view) {
        say("got", "id", view.getMessageId().toString(), "body", body(view), "attempt", view.getDeliveryAttempt(),
            "tag", view.getTag().orElse(""), "keys", view.getKeys(),
            "color", view.getProperties().getOrDefault("color", ""), "group", view.getMessageGroup().orElse(""));
    }

    private static String body(MessageView view) {
        return StandardCharsets.UTF_8.decode(view.getBody()).toString();
    }

    private int number(String name, int otherwise) {
        return args.containsKey(name) ? Integer.parseInt(args.get(name)) : otherwise;
    }

    private ClientConfiguration configuration() {
        ClientConfigurationBuilder builder = ClientConfiguration.newBuilder()
            .setEndpoints(args.get("at")).enableSsl(args.containsKey("tls"));
        if (args.containsKey("user")) {
            builder.setCredentialProvider(new StaticSessionCredentialsProvider(args.get("user"), args.get("secret")));
        }
        return builder.build();
    }

    private ProducerBuilder producer() {
        return PROVIDER.newProducerBuilder().setTopics(args.get("topic")).setClientConfiguration(configuration());
    }

    private Message message(String body) {
        MessageBuilder builder = PROVIDER.newMessageBuilder().setTopic(args.get("topic"))
            .setBody(body.getBytes(StandardCharsets.UTF_8));
        if (args.containsKey("tag")) {
            builder.setTag(args.get("tag"));
        }
        if (args.containsKey("keys")) {
            builder.setKeys(args.get("keys"));
        }
        if (args.containsKey("color")) {
            builder.addProperty("color", args.get("color"));
        }
        if (args.containsKey("group")) {
            builder.setMessageGroup(args.get("group"));
        }
        if (args.containsKey("delay")) {
            builder.setDeliveryTimestamp(System.currentTimeMillis() + number("delay", 0));
        }
        if (args.containsKey("priority")) {
            builder.setPriority(number("priority", 0));
        }
        return builder.build();
    }

    private Map<String, FilterExpression> subscriptions() {
        FilterExpression expression = args.containsKey("sql")
            ? new FilterExpression(args.get("sql"), FilterExpressionType.SQL92)
            : new FilterExpression(args.getOrDefault("tags", "*"), FilterExpressionType.TAG);
        return Collections.singletonMap(args.get("topic"), expression);
    }

    private void send() throws Exception {
        try (Producer producer = producer().build()) {
            for (String body : args.get("bodies").split(",")) {
                SendReceipt sent = producer.send(message(body));
                say("sent", "id", sent.getMessageId().toString(), "recall", String.valueOf(sent.getRecallHandle()));
            }
        }
    }

    private void recall() throws Exception {
        try (Producer producer = producer().build()) {
            say("recalled", "id",
                producer.recallMessage(args.get("topic"), args.get("handle")).getMessageId().toString());
        }
    }

    private void transact() throws Exception {
        CountDownLatch asked = new CountDownLatch(1);
        ProducerBuilder builder = producer().setTransactionChecker(view -> {
            say("asked", "body", body(view));
            asked.countDown();
            return "rollback".equals(args.get("answer")) ? TransactionResolution.ROLLBACK : TransactionResolution.COMMIT;
        });
        try (Producer producer = builder.build()) {
            Transaction running = producer.beginTransaction();
            producer.send(message(args.get("body")), running);
            if ("commit".equals(args.get("end"))) {
                running.commit();
            } else if ("rollback".equals(args.get("end"))) {
                running.rollback();
            } else if (!asked.await(number("seconds", 0), TimeUnit.SECONDS)) {
                throw new IllegalStateException("not asked");
            } else {
                Thread.sleep(500); // its answer is on its way
            }
        }
    }

    private void simple() throws Exception {
        try (SimpleConsumer consumer = PROVIDER.newSimpleConsumerBuilder()
                .setClientConfiguration(configuration()).setConsumerGroup(args.get("group"))
                .setAwaitDuration(Duration.ofSeconds(5)).setSubscriptionExpressions(subscriptions()).build()) {
            long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(number("seconds", 0));
            int left = number("count", 0);
            while (left > 0 && System.nanoTime() < end) {
                Duration invisible = Duration.ofSeconds(number("invisible", 30));
                for (MessageView view : consumer.receive(Math.min(left, 16), invisible)) {
                    got(view);
                    left--;
                    if (args.containsKey("later") && view.getDeliveryAttempt() == 1) {
                        consumer.changeInvisibleDuration(view, Duration.ofSeconds(number("later", 0)));
                    } else if (!args.containsKey("keep")) {
                        consumer.ack(view);
                    }
                }
            }
        }
    }

    private void push() throws Exception {
        CountDownLatch left = new CountDownLatch(number("count", 0));
        PushConsumer consumer = PROVIDER.newPushConsumerBuilder()
            .setClientConfiguration(configuration()).setConsumerGroup(args.get("group"))
            .setSubscriptionExpressions(subscriptions())
            .setMessageListener(view -> {
                got(view);
                pause(number("pace", 0));
                left.countDown();
                boolean isBad = view.getDeliveryAttempt() <= number("failures", 0);
                return isBad ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
            }).build();
        left.await(number("seconds", 0), TimeUnit.SECONDS);
        Thread.sleep(500); // the last answer is on its way
        consumer.close();
    }

    private static void pause(int ms) {
        try {
            Thread.sleep(ms);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        }
    }
}
