package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"runnel.dev/runnel/internal/devcluster"
)

// etcdIsRestored puts a backup of etcd in the place of what knows a topic more.
func (s *story) etcdIsRestored(ctx context.Context) error {
	etcd, backup := s.cluster.DataDir(devcluster.EtcdName), filepath.Join(s.data, "etcd-backup")
	if err := s.withoutEtcd(ctx, func() error {
		fmt.Println("$ cp -r", etcd, backup)
		return os.CopyFS(backup, os.DirFS(etcd))
	}); err != nil {
		return err
	}
	if _, err := s.ok(ctx, "", "topic", "create", "young", "-p", "3", "--replicas", "3"); err != nil {
		return err
	}
	if _, err := s.ok(ctx, "1000", "produce", "young"); err != nil {
		return err
	}
	if _, err := s.ok(ctx, "1000", "produce", "orders"); err != nil {
		return err
	}
	if err := s.withoutEtcd(ctx, func() error {
		fmt.Println("$ rm -r", etcd, "; mv", backup, etcd)
		return errors.Join(os.RemoveAll(etcd), os.Rename(backup, etcd))
	}); err != nil {
		return err
	}
	if err := await(ctx, "a refusal", func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		_, err := s.client.Admin().Topics(ctx)
		if err == nil || !strings.Contains(err.Error(), "METADATA_REFUSED") {
			return fmt.Errorf("a broker answers %w, want METADATA_REFUSED", err)
		}
		return nil
	}); err != nil {
		return err
	}
	if err := s.refused(ctx, "METADATA_REFUSED", "", "topic", "list", "--timeout", "3s"); err != nil {
		return err
	}
	if err := s.print(ctx, "etcd", "recover"); err != nil {
		return err
	}
	if err := s.print(ctx, "etcd", "recover", "--apply", "--backup", filepath.Join(s.data, "before-recovery.snapshot")); err != nil {
		return err
	}
	if err := errors.Join(s.inSync(ctx, "young", brokers), s.inSync(ctx, "orders", brokers)); err != nil {
		return err
	}
	return errors.Join(s.consumes(ctx, "young", 1000), s.consumes(ctx, "orders", 6000), s.consumes(ctx, "one", 115))
}

// withoutEtcd does something while etcd is stopped.
func (s *story) withoutEtcd(ctx context.Context, do func() error) error {
	if _, err := s.ok(ctx, "", "dev", "stop", "etcd"); err != nil {
		return err
	}
	err := do()
	_, startErr := s.ok(ctx, "", "dev", "start", "etcd")
	return errors.Join(err, startErr)
}
