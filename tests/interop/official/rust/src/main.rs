//! The official client for Rust on a leash: a command for each line of stdin, JSON on stdout.
//! Its published version has no push consumer, no recalls, no priorities and no change of the invisible time.

use std::cmp::min;
use std::collections::HashMap;
use std::error::Error;
use std::io::{stdin, BufRead, Write};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use percent_encoding::percent_decode_str;
use rocketmq::conf::{ClientOption, ProducerOption, SimpleConsumerOption};
use rocketmq::model::common::{FilterExpression, FilterType};
use rocketmq::model::message::{MessageBuilder, MessageView};
use rocketmq::model::transaction::{Transaction, TransactionResolution};
use rocketmq::{Producer, SimpleConsumer};
use serde_json::{json, Value};
use tokio::sync::mpsc;

type Arguments = HashMap<String, String>;
type Outcome = Result<(), Box<dyn Error>>;

fn say(event: Value) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{event}").and_then(|()| out.flush()).expect("stdout is open");
}

fn got(view: &MessageView) {
    say(json!({
        "event": "got", "id": view.message_id(), "body": String::from_utf8_lossy(view.body()),
        "attempt": view.delivery_attempt(), "tag": view.tag().unwrap_or(""), "keys": view.keys(),
        "color": view.properties().get("color").map_or("", String::as_str),
        "group": view.message_group().unwrap_or(""),
    }));
}

fn client(args: &Arguments) -> ClientOption {
    let mut option = ClientOption::default();
    option.set_access_url(&args["at"]);
    option.set_enable_tls(args.contains_key("tls"));
    option.set_long_polling_timeout(Duration::from_secs(20));
    if let Some(user) = args.get("user") {
        option.set_access_key(user);
        option.set_secret_key(&args["secret"]);
    }
    option
}

fn producer(args: &Arguments) -> ProducerOption {
    let mut option = ProducerOption::default();
    option.set_topics(vec![args["topic"].clone()]);
    option
}

fn message(args: &Arguments, body: &str) -> MessageBuilder {
    let mut made = MessageBuilder::builder().set_topic(&args["topic"]).set_body(body.into());
    if let Some(tag) = args.get("tag") {
        made = made.set_tag(tag);
    }
    if let Some(key) = args.get("keys") {
        made = made.set_keys(vec![key]);
    }
    if let Some(color) = args.get("color") {
        made = made.set_properties(HashMap::from([("color", color.as_str())]));
    }
    if let Some(group) = args.get("group") {
        made = made.set_message_group(group);
    }
    if let Some(delay) = args.get("delay") {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
        let wait = delay.parse::<u64>().expect("milliseconds");
        made = made.set_delivery_timestamp((now + Duration::from_millis(wait)).as_secs() as i64);
    }
    made
}

async fn send(args: &Arguments) -> Outcome {
    let mut running = Producer::new(producer(args), client(args))?;
    running.start().await?;
    for body in args["bodies"].split(',') {
        let sent = running.send(message(args, body).build()?).await?;
        say(json!({"event": "sent", "id": sent.message_id(), "recall": ""}));
    }
    Ok(running.shutdown().await?)
}

async fn transact(args: &Arguments) -> Outcome {
    let (tell, mut asked) = mpsc::unbounded_channel();
    let is_rollback = args.get("answer").is_some_and(|answer| answer == "rollback");
    let checker = Box::new(move |_: String, view: MessageView| {
        say(json!({"event": "asked", "body": String::from_utf8_lossy(view.body())}));
        let _ = tell.send(());
        if is_rollback { TransactionResolution::ROLLBACK } else { TransactionResolution::COMMIT }
    });
    let mut running = Producer::new_transaction_producer(producer(args), client(args), checker)?;
    running.start().await?;
    let half = message(args, &args["body"]).enable_transaction().build()?;
    let transaction = running.send_transaction_message(half).await?;
    match args.get("end").map(String::as_str) {
        Some("commit") => transaction.commit().await?,
        Some(_) => transaction.rollback().await?,
        None => {
            let seconds = Duration::from_secs(args["seconds"].parse()?);
            tokio::time::timeout(seconds, asked.recv()).await.map_err(|_| "not asked")?;
            tokio::time::sleep(Duration::from_millis(500)).await; // its answer is on its way
        }
    }
    Ok(running.shutdown().await?)
}

async fn simple(args: &Arguments) -> Outcome {
    let mut option = SimpleConsumerOption::default();
    option.set_consumer_group(&args["group"]);
    option.set_topics(vec![args["topic"].clone()]);
    let filter = match (args.get("sql"), args.get("tags")) {
        (Some(sql), _) => FilterExpression::new(FilterType::Sql, sql),
        (None, Some(tags)) => FilterExpression::new(FilterType::Tag, tags),
        (None, None) => FilterExpression::new(FilterType::Tag, "*"),
    };
    let mut consumer = SimpleConsumer::new(option, client(args))?;
    consumer.start().await?;
    let end = Instant::now() + Duration::from_secs(args["seconds"].parse()?);
    let mut left: i32 = args["count"].parse()?;
    while left > 0 && Instant::now() < end {
        let invisible = Duration::from_secs(30);
        for view in consumer.receive_with(&args["topic"], &filter, min(left, 16), invisible).await? {
            got(&view);
            left -= 1;
            if !args.contains_key("keep") {
                consumer.ack(&view).await?;
            }
        }
    }
    Ok(consumer.shutdown().await?)
}

async fn run(command: &str, args: &Arguments) -> Outcome {
    match command {
        "send" => send(args).await,
        "transact" => transact(args).await,
        "simple" => simple(args).await,
        other => Err(format!("the client has no {other}").into()),
    }
}

#[tokio::main]
async fn main() {
    say(json!({"event": "ready"}));
    for line in stdin().lock().lines().map_while(Result::ok) {
        let mut words = line.split(' ');
        let command = words.next().unwrap_or_default();
        let args: Arguments = words
            .filter_map(|word| word.split_once('='))
            .map(|(name, value)| (name.into(), percent_decode_str(value).decode_utf8_lossy().into()))
            .collect();
        match run(command, &args).await {
            Ok(()) => say(json!({"event": "done"})),
            Err(error) => say(json!({"event": "failed", "trace": format!("{error:?}")})),
        }
    }
}
