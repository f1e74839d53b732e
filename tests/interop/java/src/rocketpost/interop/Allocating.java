package rocketpost.interop;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Map;

import org.apache.rocketmq.client.consumer.AllocateMessageQueueStrategy;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMachineRoomNearby;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragelyByCircle;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByMachineRoom;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueConsistentHash;
import org.apache.rocketmq.common.message.MessageQueue;
import rocketpost.interop.Peer.Args;

/** The strategies of the client library, asked without any broker. */
final class Allocating {
    private Allocating() {
    }

    /** Reports each member's share of {@code queues} (broker:id,...) as indexes into that list. */
    static void allocate(Args args) {
        AllocateMessageQueueStrategy strategy = strategy(args);
        List<MessageQueue> queues = new ArrayList<>();
        for (String word : args.text("queues").split(",")) {
            int colon = word.lastIndexOf(':');
            String broker = word.substring(0, colon);
            queues.add(new MessageQueue(args.text("topic"), broker, Integer.parseInt(word.substring(colon + 1))));
        }
        List<String> members = Arrays.asList(args.text("members").split(","));
        List<Object> shares = new ArrayList<>();
        for (String member : members) {
            List<Object> share = new ArrayList<>();
            for (MessageQueue queue : strategy.allocate("group", member, queues, members)) {
                share.add(queues.indexOf(queue));
            }
            shares.add(share);
        }
        Map<String, Object> fields = Peer.event("allocated");
        fields.put("name", strategy.getName());
        fields.put("shares", shares);
        Peer.emit(fields);
    }

    private static AllocateMessageQueueStrategy strategy(Args args) {
        switch (args.text("strategy")) {
            case "AVG":
                return new AllocateMessageQueueAveragely();
            case "AVG_BY_CIRCLE":
                return new AllocateMessageQueueAveragelyByCircle();
            case "CONSISTENT_HASH":
                return new AllocateMessageQueueConsistentHash(args.number("nodes", 10));
            case "MACHINE_ROOM":
                AllocateMessageQueueByMachineRoom rooms = new AllocateMessageQueueByMachineRoom();
                rooms.setConsumeridcs(new HashSet<>(Arrays.asList(args.text("rooms").split(","))));
                return rooms;
            case "MACHINE_ROOM_NEARBY-AVG":
                return new AllocateMachineRoomNearby(new AllocateMessageQueueAveragely(), new Rooms());
            default:
                throw new IllegalArgumentException("unknown strategy " + args.text("strategy"));
        }
    }

    /** A room is what stands before the first at sign, of brokers and of clients alike. */
    private static final class Rooms implements AllocateMachineRoomNearby.MachineRoomResolver {
        @Override
        public String brokerDeployIn(MessageQueue queue) {
            return queue.getBrokerName().split("@")[0];
        }

        @Override
        public String consumerDeployIn(String clientId) {
            return clientId.split("@")[0];
        }
    }
}
