package rocketpost.interop;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;

import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

import rocketpost.interop.Peer.Args;

/** The producer's half: the kinds of sending, and the queries a producer may ask. */
final class Producing {
    private static final byte[] FILLER = "0123456789abcdef".getBytes(StandardCharsets.UTF_8);

    private Producing() {
    }

    /** {@code mode} is sync, async or oneway; {@code queue} picks one queue with a selector, {@code shardingKey} by hash. */
    static void send(Args args) throws Exception {
        if (args.has("compression")) {
            System.setProperty("rocketmq.message.compressType", args.text("compression"));
        }
        DefaultMQProducer producer = started(new DefaultMQProducer(args.text("group", "interop-producer"), Keys.hook(args), args.has("trace"), null), args);
        try {
            List<Message> messages = messages(args);
            switch (args.text("mode", "sync")) {
                case "sync":
                    for (Message message : messages) {
                        Peer.emit(Reports.sent(sendOne(producer, message, args)));
                    }
                    break;
                case "async":
                    sendAsync(producer, messages);
                    break;
                case "oneway":
                    for (Message message : messages) {
                        producer.sendOneway(message);
                    }
                    break;
                default:
                    throw new IllegalArgumentException("mode " + args.text("mode"));
            }
            // Traces that are not written before the shutdown are lost with these clients.
            TimeUnit.MILLISECONDS.sleep(args.number("linger", 0));
        } finally {
            producer.shutdown();
            System.clearProperty("rocketmq.message.compressType");
        }
    }

    static void batch(Args args) throws Exception {
        DefaultMQProducer producer = started(new DefaultMQProducer(args.text("group", "interop-producer")), args);
        try {
            Peer.emit(Reports.sent(producer.send(messages(args))));
        } finally {
            producer.shutdown();
        }
    }

    /** Decides each half message by {@code decision}: commit, rollback, or unknown and then {@code checked}. */
    static void transaction(Args args) throws Exception {
        LocalTransactionState decision = LocalTransactionState.valueOf(args.text("decision", "COMMIT_MESSAGE"));
        LocalTransactionState checked = LocalTransactionState.valueOf(args.text("checked", "COMMIT_MESSAGE"));
        CountDownLatch checks = new CountDownLatch(args.number("checks", 0));
        TransactionMQProducer producer = new TransactionMQProducer(args.text("group", "interop-transaction"));
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object arg) {
                return decision;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                Map<String, Object> fields = Reports.received(message);
                fields.put("event", "checked");
                Peer.emit(fields);
                checks.countDown();
                return checked;
            }
        });
        started(producer, args);
        try {
            for (Message message : messages(args)) {
                Peer.emit(Reports.sent(producer.sendMessageInTransaction(message, null)));
            }
            if (!checks.await(args.number("timeout", 60), TimeUnit.SECONDS)) {
                throw new IllegalStateException("transaction checks still to come: " + checks.getCount());
            }
            TimeUnit.MILLISECONDS.sleep(args.number("linger", 0));
        } finally {
            producer.shutdown();
        }
    }

    /**
     * Asks for a reply message; the answering side is {@code push reply=...} of another peer.
     *
     * <p>Asks with a callback: the blocking form of these releases gives up as soon as its message is stored.
     */
    static void request(Args args) throws Exception {
        DefaultMQProducer producer = started(new DefaultMQProducer(args.text("group", "interop-request")), args);
        List<Message> messages = messages(args);
        CountDownLatch replies = new CountDownLatch(messages.size());
        try {
            for (Message message : messages) {
                producer.request(message, new RequestCallback() {
                    @Override
                    public void onSuccess(Message reply) {
                        Map<String, Object> fields = Peer.event("reply");
                        fields.put("body", new String(reply.getBody(), StandardCharsets.UTF_8));
                        Peer.emit(fields);
                        replies.countDown();
                    }

                    @Override
                    public void onException(Throwable failure) {
                        Map<String, Object> fields = Peer.event("refused");
                        fields.put("message", String.valueOf(failure));
                        Peer.emit(fields);
                        replies.countDown();
                    }
                }, args.number("timeout", 10) * 1000L);
            }
            if (!replies.await(args.number("timeout", 10) + 10, TimeUnit.SECONDS)) {
                throw new IllegalStateException("requests neither answered nor given up: " + replies.getCount());
            }
        } finally {
            producer.shutdown();
        }
    }

    static void query(Args args) throws Exception {
        DefaultMQProducer producer = started(new DefaultMQProducer(args.text("group", "interop-producer")), args);
        try {
            QueryResult result = producer.queryMessage(args.text("topic"), args.text("key"), args.number("max", 32),
                args.longNumber("begin", 0), args.longNumber("end", System.currentTimeMillis() + 60_000));
            for (MessageExt message : result.getMessageList()) {
                Peer.emit(Reports.received(message));
            }
            Map<String, Object> fields = Peer.event("index");
            fields.put("indexLastUpdateTimestamp", result.getIndexLastUpdateTimestamp());
            Peer.emit(fields);
        } finally {
            producer.shutdown();
        }
    }

    /** Recalls a timed message by its handle; only 5.x can. */
    static void recall(Args args) throws Exception {
        DefaultMQProducer producer = started(new DefaultMQProducer(args.text("group", "interop-producer")), args);
        try {
            Object id = DefaultMQProducer.class.getMethod("recallMessage", String.class, String.class)
                .invoke(producer, args.text("topic"), args.text("handle"));
            Map<String, Object> fields = Peer.event("recalled");
            fields.put("msgId", id);
            Peer.emit(fields);
        } catch (java.lang.reflect.InvocationTargetException refused) {
            Map<String, Object> fields = Peer.event("refused");
            fields.put("message", String.valueOf(refused.getCause()));
            Peer.emit(fields);
        } finally {
            producer.shutdown();
        }
    }

    static void view(Args args) throws Exception {
        DefaultMQProducer producer = started(new DefaultMQProducer(args.text("group", "interop-producer")), args);
        try {
            Peer.emit(Reports.received(producer.viewMessage(args.text("topic"), args.text("id"))));
        } finally {
            producer.shutdown();
        }
    }

    private static <P extends DefaultMQProducer> P started(P producer, Args args) throws Exception {
        producer.setNamesrvAddr(args.text("namesrv"));
        producer.setSendMsgTimeout(args.number("sendTimeout", 10_000));
        producer.setClientIP("127.0.0.1");
        producer.setMaxMessageSize(8 * 1024 * 1024);
        if (args.has("compressOver")) {
            producer.setCompressMsgBodyOverHowmuch(args.number("compressOver", 4096));
        }
        producer.start();
        return producer;
    }

    private static SendResult sendOne(DefaultMQProducer producer, Message message, Args args) throws Exception {
        if (args.has("shardingKey")) {
            return producer.send(message, new SelectMessageQueueByHash(), args.text("shardingKey"));
        }
        if (!args.has("queue")) {
            return producer.send(message);
        }
        return producer.send(message, (List<MessageQueue> queues, Message m, Object arg) -> queues.get((Integer) arg),
            args.number("queue", 0));
    }

    private static void sendAsync(DefaultMQProducer producer, List<Message> messages) throws Exception {
        CountDownLatch pending = new CountDownLatch(messages.size());
        for (Message message : messages) {
            producer.send(message, new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    Peer.emit(Reports.sent(result));
                    pending.countDown();
                }

                @Override
                public void onException(Throwable failure) {
                    Map<String, Object> fields = Peer.event("refused");
                    fields.put("message", String.valueOf(failure));
                    Peer.emit(fields);
                    pending.countDown();
                }
            });
        }
        if (!pending.await(30, TimeUnit.SECONDS)) {
            throw new IllegalStateException("no callback for " + pending.getCount() + " messages");
        }
    }

    private static List<Message> messages(Args args) throws Exception {
        List<Message> messages = new ArrayList<>();
        String[] tags = args.text("tags", "").split(",");
        for (int i = 0; i < args.number("count", 1); i++) {
            Message message = new Message(args.text("topic"), body(args, i));
            if (!tags[i % tags.length].isEmpty()) {
                message.setTags(tags[i % tags.length]);
            }
            if (args.has("keys")) {
                message.setKeys(Arrays.asList(args.text("keys").replace("#", Integer.toString(i)).split(",")));
            }
            if (args.has("properties")) {
                for (String pair : args.text("properties").split(",")) {
                    message.putUserProperty(pair.substring(0, pair.indexOf(':')), pair.substring(pair.indexOf(':') + 1));
                }
            }
            if (args.has("delayLevel")) {
                message.setDelayTimeLevel(args.number("delayLevel", 0));
            }
            if (args.has("delayMs")) {
                // Named by key: only 5.x has a method for it.
                org.apache.rocketmq.common.message.MessageAccessor.putProperty(message, "TIMER_DELAY_MS", args.text("delayMs"));
            }
            for (String name : new String[] {"delayTimeSec", "delayTimeMs", "deliverTimeMs"}) {
                if (args.has(name)) {
                    // Only 5.x has these.
                    String setter = "set" + Character.toUpperCase(name.charAt(0)) + name.substring(1);
                    Message.class.getMethod(setter, long.class).invoke(message, args.longNumber(name, 0));
                }
            }
            message.setFlag(args.number("flag", 0));
            messages.add(message);
        }
        return messages;
    }

    /** The text {@code <body>-<i>}, repeated fillers after it when a {@code size} is asked for. */
    private static byte[] body(Args args, int i) {
        byte[] start = (args.text("body", "body") + "-" + i).getBytes(StandardCharsets.UTF_8);
        byte[] body = Arrays.copyOf(start, Math.max(start.length, args.number("size", 0)));
        for (int at = start.length; at < body.length; at++) {
            body[at] = FILLER[at % FILLER.length];
        }
        return body;
    }
}
