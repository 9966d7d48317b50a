// The OTLP receiver of the OpenTelemetry Collector, over HTTP. It prints each request that it accepts as a line of JSON.
//
// usage: otlp-receiver CONFIG     the receiver's configuration in JSON, as a collector has it below receivers.otlp
//
// The line "ready" shows that it listens. It ends when standard input ends.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"os"
	"sync"

	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
	"go.opentelemetry.io/collector/receiver/receivertest"
)

func main() {
	log.SetFlags(0)
	if len(os.Args) != 2 {
		log.Fatal("usage: otlp-receiver CONFIG")
	}
	if err := run([]byte(os.Args[1])); err != nil {
		log.Fatal(err)
	}
}

func run(configuration []byte) error {
	var fields map[string]any
	if err := json.Unmarshal(configuration, &fields); err != nil {
		return err
	}
	factory := otlpreceiver.NewFactory()
	config := factory.CreateDefaultConfig()
	if err := confmap.NewFromStringMap(fields).Unmarshal(config); err != nil {
		return err
	}
	next, err := consumer.NewTraces(printer())
	if err != nil {
		return err
	}
	ctx := context.Background()
	server, err := factory.CreateTraces(ctx, receivertest.NewNopSettings(factory.Type()), config, next)
	if err != nil {
		return err
	}
	if err := server.Start(ctx, componenttest.NewNopHost()); err != nil {
		return err
	}
	fmt.Println("ready")
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		return err
	}
	return server.Shutdown(ctx)
}

// printer returns a function that prints what the receiver has decoded.
func printer() consumer.ConsumeTracesFunc {
	var lock sync.Mutex
	var marshaler ptrace.JSONMarshaler
	return func(_ context.Context, traces ptrace.Traces) error {
		text, err := marshaler.MarshalTraces(traces)
		if err != nil {
			return err
		}
		lock.Lock()
		defer lock.Unlock()
		_, err = fmt.Printf("%s\n", text)
		return err
	}
}
