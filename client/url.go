package client

import (
	"fmt"
	"net"
	"net/url"
	"strings"
)

// DefaultPort is where brokers listen for gRPC unless told otherwise.
const DefaultPort = "7650"

// parseURL reads "runnel://h1:7650,h2:7650"; the scheme and the port may be left out.
func parseURL(s string) ([]string, error) {
	rest, hasScheme := strings.CutPrefix(s, "runnel://")
	if !hasScheme && strings.Contains(s, "://") {
		return nil, fmt.Errorf("client: %q: the scheme has to be runnel://", s)
	}
	var seeds []string
	for part := range strings.SplitSeq(strings.TrimSuffix(rest, "/"), ",") {
		part = strings.TrimSpace(part)
		host, port, err := net.SplitHostPort(part)
		if err != nil {
			host, port = strings.Trim(part, "[]"), DefaultPort
			if strings.Contains(host, ":") && !strings.HasPrefix(part, "[") {
				return nil, fmt.Errorf("client: %q: %w", s, err)
			}
		}
		if _, err := url.Parse("//" + net.JoinHostPort(host, port)); err != nil || host == "" || strings.ContainsAny(host, "/?#@ ") {
			return nil, fmt.Errorf("client: %q: want runnel://host:port,…, got the address %q", s, part)
		}
		seeds = append(seeds, net.JoinHostPort(host, port))
	}
	return seeds, nil
}
