// The official client for Go on a leash: a command for each line of stdin, JSON on stdout.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	client "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

type arguments map[string]string

var (
	out   = json.NewEncoder(os.Stdout)
	turn  sync.Mutex
	never = context.Background()
)

func say(event string, values map[string]any) {
	turn.Lock()
	defer turn.Unlock()
	line := map[string]any{"event": event}
	for name, value := range values {
		line[name] = value
	}
	if err := out.Encode(line); err != nil {
		panic(err)
	}
}

func (a arguments) number(name string, otherwise int) int {
	if number, err := strconv.Atoi(a[name]); err == nil {
		return number
	}
	return otherwise
}

func (a arguments) seconds(name string, otherwise int) time.Duration {
	return time.Duration(a.number(name, otherwise)) * time.Second
}

func (a arguments) config() *client.Config {
	_, client.EnableSsl = a["tls"]
	keys := &credentials.SessionCredentials{AccessKey: a["user"], AccessSecret: a["secret"]}
	config := &client.Config{Endpoint: a["at"], Credentials: keys}
	return config
}

func (a arguments) consumerConfig() *client.Config {
	config := a.config()
	config.ConsumerGroup = a["group"]
	return config
}

func (a arguments) message(body string) (*client.Message, error) {
	made := &client.Message{Topic: a["topic"], Body: []byte(body)}
	if tag, ok := a["tag"]; ok {
		made.SetTag(tag)
	}
	if key, ok := a["keys"]; ok {
		made.SetKeys(key)
	}
	if color, ok := a["color"]; ok {
		made.AddProperty("color", color)
	}
	if group, ok := a["group"]; ok {
		made.SetMessageGroup(group)
	}
	if _, ok := a["delay"]; ok {
		made.SetDelayTimestamp(time.Now().Add(time.Duration(a.number("delay", 0)) * time.Millisecond))
	}
	if _, ok := a["priority"]; ok {
		if err := made.SetPriority(int32(a.number("priority", 0))); err != nil {
			return nil, err
		}
	}
	return made, nil
}

func (a arguments) subscriptions() map[string]*client.FilterExpression {
	expression := client.SUB_ALL
	if tags, ok := a["tags"]; ok {
		expression = client.NewFilterExpression(tags)
	}
	if sql, ok := a["sql"]; ok {
		expression = client.NewFilterExpressionWithType(sql, client.SQL92)
	}
	return map[string]*client.FilterExpression{a["topic"]: expression}
}

func text(value *string) string {
	if value == nil {
		return ""
	}
	return *value
}

func got(view *client.MessageView) {
	say("got", map[string]any{
		"id": view.GetMessageId(), "body": string(view.GetBody()), "attempt": view.GetDeliveryAttempt(),
		"tag": text(view.GetTag()), "keys": view.GetKeys(),
		"color": view.GetProperties()["color"], "group": text(view.GetMessageGroup()),
	})
}

func produce(a arguments, work func(client.Producer) error, options ...client.ProducerOption) error {
	options = append(options, client.WithTopics(a["topic"]))
	producer, err := client.NewProducer(a.config(), options...)
	if err != nil {
		return err
	}
	if err := producer.Start(); err != nil {
		return err
	}
	return errors.Join(work(producer), producer.GracefulStop())
}

func send(a arguments) error {
	return produce(a, func(producer client.Producer) error {
		for _, body := range strings.Split(a["bodies"], ",") {
			made, err := a.message(body)
			if err != nil {
				return err
			}
			sent, err := producer.Send(never, made)
			if err != nil {
				return err
			}
			say("sent", map[string]any{"id": sent[0].MessageID, "recall": sent[0].RecallHandle})
		}
		return nil
	})
}

func recall(a arguments) error {
	return produce(a, func(producer client.Producer) error {
		id, err := producer.Recall(never, a["topic"], a["handle"])
		if err == nil {
			say("recalled", map[string]any{"id": id})
		}
		return err
	})
}

func transact(a arguments) error {
	asked := make(chan bool, 16)
	checker := &client.TransactionChecker{Check: func(view *client.MessageView) client.TransactionResolution {
		say("asked", map[string]any{"body": string(view.GetBody())})
		asked <- true
		if a["answer"] == "rollback" {
			return client.ROLLBACK
		}
		return client.COMMIT
	}}
	return produce(a, func(producer client.Producer) error {
		running := producer.BeginTransaction()
		made, err := a.message(a["body"])
		if err != nil {
			return err
		}
		if _, err := producer.SendWithTransaction(never, made, running); err != nil {
			return err
		}
		switch a["end"] {
		case "commit":
			return running.Commit()
		case "rollback":
			return running.RollBack()
		}
		select {
		case <-asked:
			time.Sleep(time.Second / 2) // its answer is on its way
			return nil
		case <-time.After(a.seconds("seconds", 0)):
			return errors.New("not asked")
		}
	}, client.WithTransactionChecker(checker))
}

func simple(a arguments) error {
	consumer, err := client.NewSimpleConsumer(a.consumerConfig(),
		client.WithSimpleAwaitDuration(5*time.Second), client.WithSimpleSubscriptionExpressions(a.subscriptions()))
	if err != nil {
		return err
	}
	if err := consumer.Start(); err != nil {
		return err
	}
	left, end := a.number("count", 0), time.Now().Add(a.seconds("seconds", 0))
	_, keeps := a["keep"]
	for left > 0 && time.Now().Before(end) {
		views, err := consumer.Receive(never, int32(min(left, 16)), a.seconds("invisible", 30))
		var status *client.ErrRpcStatus
		if err != nil && !(errors.As(err, &status) && status.Code == 40401) {
			return errors.Join(err, consumer.GracefulStop())
		}
		for _, view := range views {
			got(view)
			left--
			if _, ok := a["later"]; ok && view.GetDeliveryAttempt() == 1 {
				err = consumer.ChangeInvisibleDuration(view, a.seconds("later", 0))
			} else if !keeps {
				err = consumer.Ack(never, view)
			}
			if err != nil {
				return errors.Join(err, consumer.GracefulStop())
			}
		}
	}
	return consumer.GracefulStop()
}

func push(a arguments) error {
	var left atomic.Int64
	left.Store(int64(a.number("count", 0)))
	done := make(chan bool, 1)
	listener := &client.FuncMessageListener{Consume: func(view *client.MessageView) client.ConsumerResult {
		got(view)
		time.Sleep(time.Duration(a.number("pace", 0)) * time.Millisecond)
		if left.Add(-1) == 0 {
			done <- true
		}
		if int(view.GetDeliveryAttempt()) <= a.number("failures", 0) {
			return client.FAILURE
		}
		return client.SUCCESS
	}}
	consumer, err := client.NewPushConsumer(a.consumerConfig(),
		client.WithPushAwaitDuration(5*time.Second),
		client.WithPushSubscriptionExpressions(a.subscriptions()), client.WithPushMessageListener(listener))
	if err != nil {
		return err
	}
	if err := consumer.Start(); err != nil {
		return err
	}
	select {
	case <-done:
	case <-time.After(a.seconds("seconds", 0)):
	}
	time.Sleep(time.Second / 2) // the last answer is on its way
	return consumer.GracefulStop()
}

func main() {
	client.ResetLogger()
	commands := map[string]func(arguments) error{
		"send": send, "recall": recall, "transact": transact, "simple": simple, "push": push,
	}
	say("ready", nil)
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		words := strings.Split(lines.Text(), " ")
		a := arguments{}
		for _, word := range words[1:] {
			name, value, _ := strings.Cut(word, "=")
			plain, err := url.QueryUnescape(value)
			if err != nil {
				panic(err)
			}
			a[name] = plain
		}
		if err := commands[words[0]](a); err != nil {
			say("failed", map[string]any{"trace": fmt.Sprintf("%+v", err)})
		} else {
			say("done", nil)
		}
	}
}
