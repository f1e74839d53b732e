package rocketpost.interop;

import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.Map;

import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * A foreign client on a leash: commands come in on stdin, one JSON object per result goes out on stdout.
 *
 * <p>A command is one line, {@code name key=value ...}, values percent-encoded. Every command ends with an object whose
 * {@code event} is {@code done} or {@code failed}. The same source is compiled against each client version, so only
 * what those versions share is used here.
 */
public final class Peer {
    /** The real stdout; System.out is handed to the client library, which likes to talk. */
    private static final PrintStream WIRE = System.out;

    private Peer() {
    }

    public static void main(String[] args) throws Exception {
        System.setOut(System.err);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        emit(event("ready"));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.trim().split(" ");
            Args parsed = new Args(words);
            try {
                run(words[0], parsed);
                emit(event("done"));
            } catch (Throwable failure) {
                emit(describe(failure));
            }
        }
        System.exit(0);
    }

    private static void run(String name, Args args) throws Exception {
        switch (name) {
            case "send":
                Producing.send(args);
                break;
            case "batch":
                Producing.batch(args);
                break;
            case "transaction":
                Producing.transaction(args);
                break;
            case "request":
                Producing.request(args);
                break;
            case "push":
                Consuming.push(args);
                break;
            case "litepull":
                Consuming.litePull(args);
                break;
            case "pull":
                Consuming.pull(args);
                break;
            case "offsets":
                Consuming.offsets(args);
                break;
            case "allocate":
                Allocating.allocate(args);
                break;
            case "query":
                Producing.query(args);
                break;
            case "recall":
                Producing.recall(args);
                break;
            case "view":
                Producing.view(args);
                break;
            case "mqadmin":
                mqadmin(args);
                break;
            default:
                throw new IllegalArgumentException("unknown command " + name);
        }
    }

    /** Runs one mqadmin command line in this JVM and reports everything it printed. */
    private static void mqadmin(Args args) throws Exception {
        ByteArrayOutputStream printed = new ByteArrayOutputStream();
        PrintStream out = System.out;
        System.setProperty("rocketmq.namesrv.addr", args.text("namesrv"));
        System.setOut(new PrintStream(printed, true, "UTF-8"));
        try {
            MQAdminStartup.main0(args.text("line").split(" "), null);
        } finally {
            System.setOut(out);
        }
        Map<String, Object> result = event("printed");
        result.put("text", printed.toString("UTF-8"));
        emit(result);
    }

    static Map<String, Object> event(String name) {
        Map<String, Object> fields = new LinkedHashMap<>();
        fields.put("event", name);
        return fields;
    }

    private static Map<String, Object> describe(Throwable failure) {
        Map<String, Object> fields = event("failed");
        fields.put("error", failure.getClass().getSimpleName());
        fields.put("message", String.valueOf(failure.getMessage()));
        StringBuilder trace = new StringBuilder();
        for (Throwable cause = failure; cause != null; cause = cause.getCause()) {
            trace.append(cause).append('\n');
            for (int i = 0; i < Math.min(8, cause.getStackTrace().length); i++) {
                trace.append("  at ").append(cause.getStackTrace()[i]).append('\n');
            }
        }
        fields.put("trace", trace.toString());
        return fields;
    }

    static synchronized void emit(Map<String, Object> fields) {
        byte[] line = (Json.text(fields) + "\n").getBytes(StandardCharsets.UTF_8);
        WIRE.write(line, 0, line.length);
        WIRE.flush();
    }

    /** The arguments of one command. */
    static final class Args {
        private final Map<String, String> values = new LinkedHashMap<>();

        Args(String[] words) throws Exception {
            for (int i = 1; i < words.length; i++) {
                int equals = words[i].indexOf('=');
                values.put(words[i].substring(0, equals), URLDecoder.decode(words[i].substring(equals + 1), "UTF-8"));
            }
        }

        boolean has(String key) {
            return values.containsKey(key);
        }

        String text(String key) {
            if (!values.containsKey(key)) {
                throw new IllegalArgumentException("missing argument " + key);
            }
            return values.get(key);
        }

        String text(String key, String otherwise) {
            return values.getOrDefault(key, otherwise);
        }

        int number(String key, int otherwise) {
            return values.containsKey(key) ? Integer.parseInt(values.get(key)) : otherwise;
        }

        long longNumber(String key, long otherwise) {
            return values.containsKey(key) ? Long.parseLong(values.get(key)) : otherwise;
        }
    }
}
