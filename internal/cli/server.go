package cli

import (
	"io"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/cobra"

	"runnel.dev/runnel/broker"
	"runnel.dev/runnel/broker/config"
	"runnel.dev/runnel/internal/etcdserver"
)

// serverCommands run servers in this process, or a cluster of them beside it.
func (a *app) serverCommands() []*cobra.Command {
	return []*cobra.Command{a.brokerCommand(), a.etcdCommand(), a.devCommand()}
}

func (a *app) brokerCommand() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "broker",
		Short: "Run a broker in the foreground",
		Long: "broker runs one broker until SIGTERM or SIGINT. Settings come from --config, then from RUNNEL_… environment\n" +
			"variables, then from flags; every fault is reported at once. It logs to standard error.",
		Args: noArgs,
	}
	cmd.Flags().StringVar(&file, "config", "", "YAML file with the broker's settings")
	loader := config.NewLoader(cmd.Flags())
	cmd.RunE = func(c *cobra.Command, _ []string) error {
		cfg, err := loader.Load(file, a.Getenv)
		if err != nil {
			return usageError{err: err, command: c.CommandPath()}
		}
		fsys, err := dataFS(cfg.Storage.DataDir, a.Getenv)
		if err != nil {
			return err
		}
		registry := prometheus.NewRegistry()
		registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
		b, err := broker.New(cfg, broker.Deps{
			FS: fsys, Clock: a.Clock, Logger: newLogger(a.Err, cfg.Log), Registry: registry,
		})
		if err != nil {
			return err
		}
		return b.Run(c.Context())
	}
	return cmd
}

// newLogger makes the logger that a broker's settings ask for.
func newLogger(w io.Writer, c config.Log) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(c.Level)) // validated; the zero value is info
	opts := &slog.HandlerOptions{Level: level}
	if c.Format == "text" {
		return slog.New(slog.NewTextHandler(w, opts))
	}
	return slog.New(slog.NewJSONHandler(w, opts))
}

func (a *app) etcdCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "etcd", Short: "Run the metadata store, and bring its contents back", Args: cobra.ArbitraryArgs, RunE: group}
	cmd.AddCommand(a.etcdServeCommand(), a.etcdRecoverCommand())
	return cmd
}

func (a *app) etcdServeCommand() *cobra.Command {
	var cfg etcdserver.Config
	logs := config.Default().Log
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run one etcd member in the foreground",
		Args:  noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			s, err := etcdserver.New(cfg, newLogger(a.Err, logs))
			if err != nil {
				return usageError{err: err, command: c.CommandPath()}
			}
			return s.Run(c.Context())
		},
	}
	f := cmd.Flags()
	f.StringVar(&cfg.Name, "name", "default", "name of the member")
	f.StringVar(&cfg.DataDir, "data-dir", "etcd-data", "data directory")
	f.StringSliceVar(&cfg.ClientURLs, "client-url", []string{"http://127.0.0.1:2379"}, "URLs to serve clients on")
	f.StringSliceVar(&cfg.PeerURLs, "peer-url", []string{"http://127.0.0.1:2380"}, "URLs to serve other members on")
	f.StringSliceVar(&cfg.AdvertiseClientURLs, "advertise-client-url", nil, "how clients reach this member; default: --client-url")
	f.StringSliceVar(&cfg.AdvertisePeerURLs, "advertise-peer-url", nil, "how members reach this one; default: --peer-url")
	f.StringVar(&cfg.InitialCluster, "initial-cluster", "", "all members as name=peer-url,…; default: this one alone")
	f.StringVar(&cfg.ClientTLS.CertFile, "cert-file", "", "PEM certificate for https client URLs")
	f.StringVar(&cfg.ClientTLS.KeyFile, "key-file", "", "PEM key of that certificate")
	f.StringVar(&cfg.ClientTLS.CAFile, "client-ca-file", "", "PEM roots; clients then have to show a certificate")
	f.StringVar(&cfg.PeerTLS.CertFile, "peer-cert-file", "", "PEM certificate for https peer URLs")
	f.StringVar(&cfg.PeerTLS.KeyFile, "peer-key-file", "", "PEM key of that certificate")
	f.StringVar(&cfg.PeerTLS.CAFile, "peer-ca-file", "", "PEM roots; peers then have to show a certificate")
	f.StringVar(&logs.Level, "log-level", logs.Level, "debug, info, warn or error")
	f.StringVar(&logs.Format, "log-format", "text", "text or json")
	return cmd
}
