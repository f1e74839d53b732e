package rocketpost.interop;

import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.TreeMap;
import java.util.zip.CRC32;

import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.MessageClientExt;
import org.apache.rocketmq.common.message.MessageExt;

/** What the client library hands back, as reportable fields. */
final class Reports {
    private static final int BODY_SHOWN_BYTES_MAX = 256;

    private Reports() {
    }

    static Map<String, Object> sent(SendResult result) {
        Map<String, Object> fields = Peer.event("sent");
        fields.put("status", result.getSendStatus().name());
        fields.put("msgId", result.getMsgId());
        fields.put("offsetMsgId", result.getOffsetMsgId());
        fields.put("topic", result.getMessageQueue().getTopic());
        fields.put("broker", result.getMessageQueue().getBrokerName());
        fields.put("queueId", result.getMessageQueue().getQueueId());
        fields.put("queueOffset", result.getQueueOffset());
        fields.put("transactionId", result.getTransactionId());
        fields.put("regionId", result.getRegionId());
        try {
            fields.put("recallHandle", result.getClass().getMethod("getRecallHandle").invoke(result));
        } catch (ReflectiveOperationException before5) {
            fields.put("recallHandle", null);
        }
        return fields;
    }

    static Map<String, Object> received(MessageExt message) {
        Map<String, Object> fields = Peer.event("message");
        fields.put("topic", message.getTopic());
        fields.put("msgId", message.getMsgId());
        if (message instanceof MessageClientExt) {
            fields.put("offsetMsgId", ((MessageClientExt) message).getOffsetMsgId());
        }
        fields.put("broker", message.getBrokerName());
        fields.put("queueId", message.getQueueId());
        fields.put("queueOffset", message.getQueueOffset());
        fields.put("commitLogOffset", message.getCommitLogOffset());
        fields.put("storeSize", message.getStoreSize());
        fields.put("sysFlag", message.getSysFlag());
        fields.put("flag", message.getFlag());
        fields.put("bornTimestamp", message.getBornTimestamp());
        fields.put("storeTimestamp", message.getStoreTimestamp());
        fields.put("bornHost", String.valueOf(message.getBornHost()));
        fields.put("storeHost", String.valueOf(message.getStoreHost()));
        fields.put("reconsumeTimes", message.getReconsumeTimes());
        fields.put("tags", message.getTags());
        fields.put("keys", message.getKeys());
        fields.put("properties", new TreeMap<>(message.getProperties()));
        byte[] body = message.getBody() == null ? new byte[0] : message.getBody();
        CRC32 crc = new CRC32();
        crc.update(body);
        fields.put("bodySize", body.length);
        fields.put("bodyCrc", crc.getValue());
        if (body.length <= BODY_SHOWN_BYTES_MAX) {
            fields.put("body", new String(body, StandardCharsets.UTF_8));
        }
        return fields;
    }
}
