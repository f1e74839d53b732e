package rocketpost.interop;

import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.remoting.RPCHook;

import rocketpost.interop.Peer.Args;

/** The keys with which a client signs its requests. */
final class Keys {
    private Keys() {
    }

    /** Returns the hook that signs, or null if the command names no keys. */
    static RPCHook hook(Args args) {
        if (!args.has("accessKey")) {
            return null;
        }
        return new AclClientRPCHook(new SessionCredentials(args.text("accessKey"), args.text("secretKey")));
    }
}
