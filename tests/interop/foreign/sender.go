// A sender of the Go client: sends 0, 1, 2, ... until its input ends, and prints what became of each.
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

func main() {
	servers, topic := os.Args[1], os.Args[2]
	rlog.SetLogLevel("error")
	done := make(chan struct{})
	go func() {
		reader := bufio.NewReader(os.Stdin)
		for {
			if _, err := reader.ReadByte(); err != nil {
				close(done)
				return
			}
		}
	}()
	client, err := rocketmq.NewProducer(
		producer.WithNameServer(strings.Split(servers, ";")),
		producer.WithGroupName("go-senders"),
		producer.WithRetry(2),
		producer.WithSendMsgTimeout(3*time.Second),
	)
	if err == nil {
		err = client.Start()
	}
	if err != nil {
		fmt.Println("stopped", err)
		os.Exit(1)
	}
	for number := 0; ; number++ {
		select {
		case <-done:
			client.Shutdown()
			return
		default:
		}
		message := primitive.NewMessage(topic, []byte(fmt.Sprint(number)))
		result, err := client.SendSync(context.Background(), message)
		if err == nil && result.Status == primitive.SendOK {
			fmt.Println("sent", number)
		} else {
			fmt.Println("failed", number, strings.ReplaceAll(fmt.Sprint(err), "\n", " "))
		}
		time.Sleep(5 * time.Millisecond)
	}
}
