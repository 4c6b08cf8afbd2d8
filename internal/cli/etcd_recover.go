package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"runnel.dev/runnel/broker/config"
	"runnel.dev/runnel/broker/metadata"
	"runnel.dev/runnel/broker/recovery"
	"runnel.dev/runnel/internal/devcluster"
	"runnel.dev/runnel/internal/tlsreload"
)

// inventoryBytes bounds one message of an inventory.
const inventoryBytes = 64 << 20

// recoverFlags are those of etcd recover.
type recoverFlags struct {
	endpoints, brokers, snapshots []string
	cluster, data, backup         string
	discard, clusterID            string
	without                       []int32
	apply, noBackup               bool
	wait                          durationFlag
	etcdTLS                       tlsreload.Config
}

func (a *app) etcdRecoverCommand() *cobra.Command {
	f := recoverFlags{wait: durationFlag(2 * time.Minute)}
	cmd := &cobra.Command{
		Use: "recover", Short: "Rebuild the metadata after etcd was lost or restored from a backup",
		Long: "recover makes the contents of etcd anew, out of what etcd still has and what the brokers' data directories hold, so that nothing\n" +
			"that was acknowledged is missing. Brokers refuse an etcd that is older than what they have seen, or empty, and say so; they have to be\n" +
			"running, and are asked for what they have.\n\n" +
			"Without --apply it prints what it would do, and changes nothing. With --apply it saves what etcd holds to a file (--backup), stops the\n" +
			"brokers that use this etcd, writes, and waits until every partition has a leader again. It may be interrupted and run again at any time;\n" +
			"once it has begun to write, with the same --backup.",
		Example: "  runnel etcd recover --endpoints http://etcd:2379 --cluster prod --brokers b1:7650,b2:7650,b3:7650\n" +
			"  runnel etcd recover --endpoints http://etcd:2379 --cluster prod --brokers b1:7650,b2:7650,b3:7650 --apply\n" +
			"  runnel etcd recover --data ~/.local/share/runnel/dev --apply",
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error { return a.recoverEtcd(c, f) },
	}
	fl := cmd.Flags()
	fl.StringSliceVar(&f.endpoints, "endpoints", nil, "etcd's client URLs")
	fl.StringVar(&f.cluster, "cluster", config.Default().Cluster, "name of the cluster in etcd")
	fl.StringSliceVar(&f.brokers, "brokers", nil, "all brokers, host:port of the listener that brokers use among themselves")
	fl.StringVar(&f.data, "data", "", "directory of a cluster of runnel dev, instead of --endpoints and --brokers")
	fl.BoolVar(&f.apply, "apply", false, "do it")
	fl.Int32SliceVar(&f.without, "accept-missing", nil, "ids of brokers to do without: records that only they have are lost")
	fl.StringVar(&f.backup, "backup", "", "file for what etcd holds before it is written; default runnel-etcd-CLUSTER-TIME.snapshot")
	fl.BoolVar(&f.noBackup, "no-backup", false, "go on with an interrupted recovery whose backup is lost, from what brokers have")
	fl.StringSliceVar(&f.snapshots, "snapshot", nil, "more cluster snapshots, e.g. DATA-DIR/cluster-snapshot of a broker that is gone")
	fl.Var(&f.wait, "wait", "how long to wait for brokers to stop, and for leaders")
	fl.StringVar(&f.discard, "discard-cluster", "", "id of another cluster that etcd holds by mistake, to be replaced; with --cluster-id")
	fl.StringVar(&f.clusterID, "cluster-id", "", "id of the cluster that the brokers belong to, when another one is discarded")
	fl.StringVar(&f.etcdTLS.CAFile, "etcd-ca-file", "", "PEM roots that etcd's certificates lead to")
	fl.StringVar(&f.etcdTLS.CertFile, "etcd-cert-file", "", "PEM certificate to show to etcd")
	fl.StringVar(&f.etcdTLS.KeyFile, "etcd-key-file", "", "PEM key of that certificate")
	fl.StringVar(&f.etcdTLS.ServerName, "etcd-server-name", "", "name expected in etcd's certificates")
	return cmd
}

// check completes the flags, and refuses those that do not go together.
func (f *recoverFlags) check(a *app, c *cobra.Command) error {
	if f.data != "" {
		if len(f.endpoints)+len(f.brokers) > 0 {
			return usagef(c, "--data says where etcd and the brokers are: leave --endpoints and --brokers out")
		}
		dev, err := a.openDev(devFlags{dir: f.data})
		if err != nil {
			return err
		}
		f.brokers, f.cluster = dev.Addresses(), devcluster.ClusterName
		for _, p := range dev.Processes {
			if strings.HasPrefix(p.Name, devcluster.EtcdName) {
				f.endpoints = append(f.endpoints, "http://"+p.Address)
			}
		}
	}
	if len(f.endpoints) == 0 || len(f.brokers) == 0 {
		return usagef(c, "--endpoints and --brokers are needed, or --data of a cluster of runnel dev")
	}
	if (f.discard == "") != (f.clusterID == "") || f.discard != "" && f.discard == f.clusterID {
		return usagef(c, "--discard-cluster and --cluster-id are two different ids, both or neither")
	}
	slices.Sort(f.brokers)
	f.brokers = slices.Compact(f.brokers)
	return nil
}

// recoverSession is one run of etcd recover.
type recoverSession struct {
	a       *app
	f       recoverFlags
	command string // this one, for advice
	cfg     recovery.Config
	cluster string
}

func (a *app) recoverEtcd(c *cobra.Command, f recoverFlags) (err error) {
	if err := f.check(a, c); err != nil {
		return err
	}
	s := &recoverSession{a: a, f: f, cluster: f.cluster}
	s.command = fmt.Sprintf("runnel etcd recover --endpoints %s --cluster %s --brokers %s", strings.Join(f.endpoints, ","), f.cluster, strings.Join(f.brokers, ","))
	if f.data != "" {
		s.command = "runnel etcd recover --data " + f.data
	}
	s.cfg = recovery.Config{
		Brokers: f.brokers, Without: f.without, Discard: f.discard, ClusterID: f.clusterID, AskTimeout: time.Duration(a.timeout), Clock: a.Clock,
	}
	for _, name := range f.snapshots {
		b, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if _, err := metadata.DecodeSnapshot(b); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		s.cfg.Snapshots = append(s.cfg.Snapshots, b)
	}
	if s.cfg.Connect, err = a.connector(); err != nil {
		return err
	}
	store := metadata.Config{Endpoints: f.endpoints, Cluster: f.cluster, RequestTimeout: min(time.Duration(a.timeout), 10*time.Second)}
	if f.etcdTLS.Enabled() {
		source, err := tlsreload.New(f.etcdTLS, a.Clock, slog.New(slog.DiscardHandler))
		if err != nil {
			return err
		}
		store.TLS, store.DialOptions = source.Client(), []grpc.DialOption{grpc.WithTransportCredentials(source.Credentials())}
	}
	s.cfg.Etcd, err = metadata.New(store, a.Clock, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err != nil {
		return usageError{err: err, command: c.CommandPath()}
	}
	defer func() { err = errors.Join(err, s.cfg.Etcd.Close()) }()
	return s.run(c.Context())
}

// connector opens connections to brokers as the flags of every command say.
func (a *app) connector() (func(string) (grpc.ClientConnInterface, func() error, error), error) {
	creds := insecure.NewCredentials()
	if a.tls.enabled() {
		source, err := tlsreload.New(tlsreload.Config{CAFile: a.tls.ca, CertFile: a.tls.cert, KeyFile: a.tls.key, ServerName: a.tls.serverName}, a.Clock,
			slog.New(slog.DiscardHandler))
		if err != nil {
			return nil, err
		}
		creds = source.Credentials()
	}
	opts := []grpc.DialOption{grpc.WithTransportCredentials(creds), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(inventoryBytes))}
	if a.Dial != nil {
		opts = append(opts, grpc.WithContextDialer(a.Dial))
	}
	return func(address string) (grpc.ClientConnInterface, func() error, error) {
		conn, err := grpc.NewClient("passthrough:///"+address, opts...)
		if err != nil {
			return nil, nil, err
		}
		return conn, conn.Close, nil
	}, nil
}

func (s *recoverSession) say(format string, args ...any) {
	fmt.Fprintln(s.a.Err, sanitize(fmt.Sprintf(format, args...)))
}

// run is the whole: look, and with --apply back up, stop the brokers, look again, write, wait.
func (s *recoverSession) run(ctx context.Context) error {
	now, err := recovery.Look(ctx, s.cfg)
	if err != nil && (now == nil || s.f.discard == "") {
		return s.advise(now, err)
	}
	if done, err := s.nothingToDo(ctx, now); done || err != nil {
		return err
	}
	if s.f.discard == "" || now.Plan != nil {
		err = s.acceptable(now)
	}
	if !s.f.apply || err != nil {
		if shown := s.show(now); shown != nil || err != nil {
			return errors.Join(shown, err)
		}
		s.say("nothing was changed; to go ahead: %s --apply", s.command)
		return nil
	}
	if err := s.keep(now.Etcd); err != nil {
		return err
	}
	s.say("stopping brokers that use this etcd")
	now, err = recovery.Begin(ctx, s.cfg, now, time.Duration(s.f.wait), func(what string) { s.say("waiting for %s", what) })
	if err != nil {
		return s.resume(err)
	}
	if now.Plan == nil {
		return s.resume(errors.New("no broker says what it has: start the brokers"))
	}
	shown, err := s.show(now), s.acceptable(now)
	if err := errors.Join(shown, err); err != nil {
		return s.resume(err)
	}
	s.say("writing era %d: %d keys", now.Plan.Era, len(now.Plan.Keys))
	if err := s.cfg.Etcd.Restore(ctx, now.Plan); err != nil {
		return s.resume(err)
	}
	s.say("etcd is recovered; waiting for leaders")
	return s.awaitLeaders(ctx, now)
}

// nothingToDo is for a cluster that works, recovered a moment ago maybe, and for one whose brokers are not there.
func (s *recoverSession) nothingToDo(ctx context.Context, now *recovery.Situation) (bool, error) {
	switch {
	case now.Count(recovery.Refuses) > 0 || s.f.discard != "":
		return false, nil
	case now.Count(recovery.Uses) == 0:
		err := now.Brokers[0].Err
		return false, adviceError{
			err:    fmt.Errorf("none of %d brokers answers, and one that refuses its etcd would say what it has; %s: %w", len(now.Brokers), now.Brokers[0].Address, err),
			advice: "start the brokers, with this etcd running, and look at what they log",
		}
	}
	s.say("nothing to recover: no broker refuses this etcd")
	for _, b := range now.Brokers {
		if b.Standing == recovery.Silent {
			s.say("%s does not answer: %v", b.Address, b.Err)
		}
	}
	if !s.f.apply {
		return true, nil
	}
	return true, s.awaitLeaders(ctx, now)
}

// acceptable refuses a plan that leaves out what somebody has to say yes to.
func (s *recoverSession) acceptable(now *recovery.Situation) error {
	if len(now.Leading) > 0 {
		return adviceError{
			err: fmt.Errorf("brokers %s went on with this etcd, and lead partitions in it: what they have acknowledged since it went back cannot be put together "+
				"with what the others have", brokerList(now.Leading)),
			advice: s.command + " --accept-missing " + brokerList(now.Leading) + ", and empty their data directories before they start again",
		}
	}
	var missing []int32
	for _, id := range now.Plan.Missing {
		if !slices.Contains(s.f.without, id) && !inUse(now, id) {
			missing = append(missing, id)
		}
	}
	if len(missing) == 0 {
		return s.silent(now)
	}
	return adviceError{
		err:    fmt.Errorf("brokers %s are known and have not said what they have: what only they have would be lost", brokerList(missing)),
		advice: "start them, or go ahead without: " + s.command + " --accept-missing " + brokerList(missing),
	}
}

// silent refuses when more addresses do not answer than brokers were left out: with etcd and all snapshots lost, nobody knows who is missing.
func (s *recoverSession) silent(now *recovery.Situation) error {
	var silent []string
	out := len(s.f.without)
	for _, b := range now.Brokers {
		switch {
		case b.Standing == recovery.Silent:
			silent = append(silent, b.Address)
		case slices.Contains(s.f.without, b.ID):
			out--
		}
	}
	if len(silent) <= out {
		return nil
	}
	return adviceError{
		err:    fmt.Errorf("%s: no answer, and what only they have would be lost", strings.Join(silent, ", ")),
		advice: "start them, or go ahead without: " + s.command + " --accept-missing with the ids of those that do not answer",
	}
}

// inUse reports whether a broker uses this etcd, and will say what it has once the recovery has begun.
func inUse(now *recovery.Situation, id int32) bool {
	return now.Count(recovery.Uses) > 0 && slices.ContainsFunc(now.Registered, func(b *metadata.Broker) bool { return b.ID == id })
}

// keep saves what etcd holds, or finds what an interrupted run has saved.
func (s *recoverSession) keep(etcd *metadata.Snapshot) error {
	b, err := os.ReadFile(s.f.backup)
	switch {
	case s.f.backup != "" && err == nil:
		if _, err := metadata.DecodeSnapshot(b); err != nil {
			return fmt.Errorf("%s: %w", s.f.backup, err)
		}
		s.say("going on with the backup in %s", s.f.backup)
		s.cfg.Snapshots = append(s.cfg.Snapshots, b)
		return nil
	case s.f.backup != "" && !errors.Is(err, fs.ErrNotExist):
		return err
	case len(etcd.Keys) <= 1 && (etcd.Recovering || len(etcd.Keys) == 0):
		s.say("etcd holds nothing that could be kept")
		return nil
	case etcd.Recovering && !s.f.noBackup:
		return adviceError{
			err:    errors.New("an earlier recovery was interrupted while it wrote: what etcd holds is neither what was there before nor what comes after"),
			advice: s.command + " --apply --backup with the file that the earlier run has saved, or --no-backup when it is lost",
		}
	case etcd.Recovering:
		return nil
	}
	if b, err = metadata.EncodeSnapshot(etcd); err != nil {
		return err
	}
	if s.f.backup == "" {
		s.f.backup = "runnel-etcd-" + s.cluster + "-" + s.a.Clock.Now().UTC().Format("20060102T150405Z") + ".snapshot"
	}
	if err := writeNew(s.f.backup, b); err != nil {
		return err
	}
	s.say("what etcd holds was saved to %s", s.f.backup)
	s.cfg.Snapshots = append(s.cfg.Snapshots, b)
	return nil
}

// writeNew writes a file that must not exist, durably.
func writeNew(name string, b []byte) error {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	return errors.Join(err, f.Sync(), f.Close())
}

// resume says how to go on after a failure.
func (s *recoverSession) resume(err error) error {
	backup := ""
	if s.f.backup != "" {
		backup = " --backup " + s.f.backup
	}
	return adviceError{err: fmt.Errorf("%w\nthe recovery has begun, and brokers wait for its end", err), advice: s.command + " --apply" + backup}
}

// advise explains failures of the first look.
func (s *recoverSession) advise(now *recovery.Situation, err error) error {
	foreign, ok := errors.AsType[*metadata.ForeignEtcdError](err)
	if !ok || now == nil || foreign.What != "cluster id in etcd" {
		return err
	}
	return adviceError{
		err: fmt.Errorf("%w: is %s the right --cluster name and etcd? A broker with an empty disk founds a cluster in an empty etcd", err, strconv.Quote(s.cluster)),
		advice: fmt.Sprintf("%s --cluster-id %s --discard-cluster %s, if nothing in that cluster is needed",
			s.command, foreign.Want, foreign.Got),
	}
}
