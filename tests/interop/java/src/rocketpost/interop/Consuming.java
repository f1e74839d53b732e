package rocketpost.interop;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;

import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

import rocketpost.interop.Peer.Args;

/** The consumer's half: push, lite pull, classic pull, and the offsets of queues. */
final class Consuming {
    private Consuming() {
    }

    /** Consumes until {@code count} messages came (first attempts and retries alike), or {@code timeout} seconds went by. */
    static void push(Args args) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(args.text("group"), Keys.hook(args), new AllocateMessageQueueAveragely(), args.has("trace"), null);
        consumer.setNamesrvAddr(args.text("namesrv"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.valueOf(args.text("from", "CONSUME_FROM_FIRST_OFFSET")));
        consumer.setConsumeThreadMin(2);
        consumer.setConsumeThreadMax(2);
        // The route of a retry topic is there only after the first heartbeat: it is asked for again soon.
        consumer.setPollNameServerInterval(1000);
        consumer.setPersistConsumerOffsetInterval(500);
        if (args.has("broadcasting")) {
            // The enum lives in another package in each release, so it is not named here.
            consumer.setMessageModel(consumer.getMessageModel().valueOf("BROADCASTING"));
        }
        if (args.has("askBrokers")) {
            // Only newer releases can leave the sharing of queues to brokers.
            consumer.getClass().getMethod("setClientRebalance", boolean.class).invoke(consumer, false);
        }
        if (args.has("sql")) {
            consumer.subscribe(args.text("topic"), MessageSelector.bySql(args.text("sql")));
        } else {
            consumer.subscribe(args.text("topic"), args.text("expression", "*"));
        }
        DefaultMQProducer replier = args.has("reply") ? replier(args) : null;
        CountDownLatch remaining = new CountDownLatch(args.number("count", 1));
        int refusals = args.number("refuse", 0);
        if (args.has("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) ->
                handle(messages, refusals, remaining, replier, args)
                    ? ConsumeOrderlyStatus.SUCCESS : ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT);
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                context.setDelayLevelWhenNextConsume(args.number("retryLevel", 1));
                return handle(messages, refusals, remaining, replier, args)
                    ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS : ConsumeConcurrentlyStatus.RECONSUME_LATER;
            });
        }
        consumer.start();
        Peer.emit(Peer.event("subscribed"));
        try {
            boolean complete = remaining.await(args.number("timeout", 30), TimeUnit.SECONDS);
            // Late ones show up as surplus, which the caller can assert on.
            TimeUnit.MILLISECONDS.sleep(args.number("linger", 300));
            Map<String, Object> fields = Peer.event("consumed");
            fields.put("complete", complete);
            Peer.emit(fields);
        } finally {
            consumer.shutdown();
            if (replier != null) {
                replier.shutdown();
            }
        }
    }

    static void litePull(Args args) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(args.text("group"));
        consumer.setNamesrvAddr(args.text("namesrv"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setAutoCommit(false);
        if (args.has("sql")) {
            consumer.subscribe(args.text("topic"), MessageSelector.bySql(args.text("sql")));
        } else {
            consumer.subscribe(args.text("topic"), args.text("expression", "*"));
        }
        consumer.start();
        try {
            int count = 0;
            long deadline = System.currentTimeMillis() + args.number("timeout", 30) * 1000L;
            while (count < args.number("count", 1) && System.currentTimeMillis() < deadline) {
                for (MessageExt message : consumer.poll(1000)) {
                    Peer.emit(Reports.received(message));
                    count++;
                }
            }
            consumer.commitSync();
        } finally {
            consumer.shutdown();
        }
    }

    /** Pulls every queue from {@code begin} (or its first offset) to its end, reporting each answer's offsets. */
    static void pull(Args args) throws Exception {
        DefaultMQPullConsumer consumer = pullConsumer(args);
        try {
            for (MessageQueue queue : queues(consumer, args)) {
                long offset = args.has("begin") ? args.longNumber("begin", 0) : consumer.minOffset(queue);
                for (boolean more = true; more; ) {
                    PullResult result = consumer.pull(queue, args.text("expression", "*"), offset, args.number("batch", 32));
                    Map<String, Object> fields = Peer.event("pulled");
                    fields.put("status", result.getPullStatus().name());
                    fields.put("queueId", queue.getQueueId());
                    fields.put("minOffset", result.getMinOffset());
                    fields.put("maxOffset", result.getMaxOffset());
                    fields.put("nextBeginOffset", result.getNextBeginOffset());
                    Peer.emit(fields);
                    if (result.getMsgFoundList() != null) {
                        result.getMsgFoundList().forEach(message -> Peer.emit(Reports.received(message)));
                    }
                    boolean answered = result.getPullStatus() == PullStatus.FOUND
                        || result.getPullStatus() == PullStatus.NO_MATCHED_MSG;
                    offset = result.getNextBeginOffset();
                    more = answered && offset < result.getMaxOffset() && !args.has("once");
                }
                if (args.has("commit")) {
                    consumer.updateConsumeOffset(queue, offset);
                    consumer.getDefaultMQPullConsumerImpl().getOffsetStore().updateConsumeOffsetToBroker(queue, offset, false);
                }
            }
        } finally {
            consumer.shutdown();
        }
    }

    static void offsets(Args args) throws Exception {
        DefaultMQPullConsumer consumer = pullConsumer(args);
        try {
            for (MessageQueue queue : queues(consumer, args)) {
                Map<String, Object> fields = Peer.event("queue");
                fields.put("broker", queue.getBrokerName());
                fields.put("queueId", queue.getQueueId());
                fields.put("minOffset", consumer.minOffset(queue));
                fields.put("maxOffset", consumer.maxOffset(queue));
                fields.put("committed", consumer.fetchConsumeOffset(queue, true));
                fields.put("earliestStoreTime", consumer.earliestMsgStoreTime(queue));
                if (args.has("timestamp")) {
                    fields.put("searched", consumer.searchOffset(queue, args.longNumber("timestamp", 0)));
                }
                Peer.emit(fields);
            }
        } finally {
            consumer.shutdown();
        }
    }

    private static DefaultMQPullConsumer pullConsumer(Args args) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(args.text("group", "interop-pull"));
        consumer.setNamesrvAddr(args.text("namesrv"));
        consumer.start();
        return consumer;
    }

    private static List<MessageQueue> queues(DefaultMQPullConsumer consumer, Args args) throws Exception {
        Collection<MessageQueue> known = consumer.fetchSubscribeMessageQueues(args.text("topic"));
        List<MessageQueue> queues = new ArrayList<>(known);
        queues.sort(Comparator.naturalOrder());
        if (args.has("queue")) {
            queues.removeIf(queue -> queue.getQueueId() != args.number("queue", 0));
        }
        return queues;
    }

    /** Reports the messages; says no to those delivered fewer than {@code refusals} times before. */
    private static boolean handle(List<MessageExt> messages, int refusals, CountDownLatch remaining,
        DefaultMQProducer replier, Args args) {
        boolean accepted = true;
        for (MessageExt message : messages) {
            Peer.emit(Reports.received(message));
            remaining.countDown();
            accepted &= message.getReconsumeTimes() >= refusals;
            if (replier != null) {
                try {
                    Message reply = MessageUtil.createReplyMessage(message, args.text("reply").getBytes(StandardCharsets.UTF_8));
                    replier.send(reply, 5000);
                } catch (Exception failure) {
                    throw new IllegalStateException(failure);
                }
            }
        }
        return accepted;
    }

    private static DefaultMQProducer replier(Args args) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("interop-replier");
        producer.setNamesrvAddr(args.text("namesrv"));
        producer.start();
        return producer;
    }
}
