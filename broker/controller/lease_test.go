package controller

import (
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// revoke ends a lease as if it had expired.
func revoke(t *testing.T, lease int64) {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: shared, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Revoke(t.Context(), clientv3.LeaseID(lease)); err != nil {
		t.Fatal(err)
	}
}
