package rocketpost.judging;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.HashMap;
import java.util.Map;

import org.apache.rocketmq.filter.FilterFactory;
import org.apache.rocketmq.filter.expression.EvaluationContext;
import org.apache.rocketmq.filter.expression.Expression;
import org.apache.rocketmq.filter.util.BloomFilter;
import org.apache.rocketmq.filter.util.BloomFilterData;

/**
 * The filters of RocketMQ on a leash. Each line on stdin is an expression and property maps, all Base64, between tabs;
 * each line on stdout has one letter per map (T, F, U for unknown, X for an exception), or E for a refused expression.
 * A line that starts with {@code bloom} and a tab asks for the bit positions of a text instead.
 */
public final class Judge {
    private Judge() {
    }

    public static void main(String[] args) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        BloomFilter bloom = BloomFilter.createByFn(20, 32);
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split("\t", -1);
            if (words[0].equals("bloom")) {
                BloomFilterData data = bloom.generate(text(words[1]));
                System.out.println(data.getBitNum() + " " + java.util.Arrays.toString(data.getBitPos()));
            } else {
                System.out.println(judge(words));
            }
        }
        System.out.flush();
    }

    private static String judge(String[] words) {
        Expression expression;
        try {
            expression = FilterFactory.INSTANCE.get("SQL92").compile(text(words[0]));
        } catch (Throwable refused) {
            return "E";
        }
        StringBuilder verdicts = new StringBuilder();
        for (int at = 1; at < words.length; at++) {
            verdicts.append(verdict(expression, properties(text(words[at]))));
        }
        return verdicts.toString();
    }

    private static char verdict(Expression expression, Map<String, Object> properties) {
        try {
            Object value = expression.evaluate(new Context(properties));
            return value == null ? 'U' : Boolean.TRUE.equals(value) ? 'T' : Boolean.FALSE.equals(value) ? 'F' : 'X';
        } catch (Throwable failed) {
            return 'X';
        }
    }

    private static String text(String encoded) {
        return new String(Base64.getDecoder().decode(encoded), StandardCharsets.UTF_8);
    }

    private static Map<String, Object> properties(String text) {
        Map<String, Object> properties = new HashMap<>();
        for (String pair : text.split("\u0002")) {
            int end = pair.indexOf('\u0001');
            if (end > 0) {
                properties.put(pair.substring(0, end), pair.substring(end + 1));
            }
        }
        return properties;
    }

    private static final class Context implements EvaluationContext {
        private final Map<String, Object> properties;

        Context(Map<String, Object> properties) {
            this.properties = properties;
        }

        @Override
        public Object get(String name) {
            return properties.get(name);
        }

        @Override
        public Map<String, Object> keyValues() {
            return properties;
        }
    }
}
