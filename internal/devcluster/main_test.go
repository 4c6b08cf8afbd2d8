package devcluster

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"syscall"
	"testing"

	"go.uber.org/goleak"
)

// TestMain is also the executable of the clusters under test: a child that answers its ready endpoint until it is told to end.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && (os.Args[1] == "broker" || os.Args[1] == "etcd") {
		os.Exit(child(os.Args[1:]))
	}
	goleak.VerifyTestMain(m)
}

// child plays a broker or a member of etcd. With CHILD=fails it ends at once.
func child(args []string) int {
	fmt.Fprintf(os.Stdout, "child %s\n", args[0])
	if os.Getenv("CHILD") == "fails" {
		fmt.Fprintln(os.Stdout, "last words")
		return 3
	}
	address, err := readyAddress(args)
	if err != nil {
		fmt.Fprintln(os.Stdout, err)
		return 1
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	server := &http.Server{Addr: address, Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	_ = server.ListenAndServe()
	return 0
}

func readyAddress(args []string) (string, error) {
	if i := slices.Index(args, "--client-url"); i >= 0 {
		u, err := url.Parse(args[i+1])
		if err != nil {
			return "", err
		}
		return u.Host, nil
	}
	b, err := os.ReadFile(args[slices.Index(args, "--config")+1])
	if err != nil {
		return "", err
	}
	found := regexp.MustCompile(`(?s)http:\s+address: "([^"]+)"`).FindSubmatch(b)
	if found == nil {
		return "", fmt.Errorf("no http address in\n%s", b)
	}
	return string(found[1]), nil
}
