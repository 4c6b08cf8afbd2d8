package metadata

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"runnel.dev/runnel/internal/ids"
)

func TestRegisterOneIDTwoStorages(t *testing.T) {
	c := client(t, nil)
	first, stop := register(t, c, 1, ids.NewStorageID())
	own := ids.NewStorageID()
	_, err := client(t, nil).Register(t.Context(), BrokerInfo{ID: 1, StorageID: own})
	var conflict *BrokerConflictError
	if !errors.As(err, &conflict) || !errors.Is(err, ErrBrokerConflict) || conflict.Live != first.Info().StorageID || conflict.Own != own || conflict.BrokerID != 1 {
		t.Fatalf("err = %v", err)
	}
	for _, part := range []string{conflict.Live.String(), own.String(), "broker 1"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q does not name %s", err, part)
		}
	}
	select {
	case <-first.Lost():
		t.Error("the refused broker has taken over")
	default:
	}
	// Once the first has stopped, which revokes its lease, the id is free.
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	second, err := c.Register(t.Context(), BrokerInfo{ID: 1, StorageID: own})
	if err != nil || second.Epoch() <= first.Epoch() {
		t.Errorf("epoch %d after %d, %v", second.Epoch(), first.Epoch(), err)
	}
}

// TestAStorageOfAnotherBrokerIsRefused: a volume that comes up under another id holds replicas that are none of that id's, and would be emptied.
func TestAStorageOfAnotherBrokerIsRefused(t *testing.T) {
	c := client(t, nil)
	storage := ids.NewStorageID()
	reg, stop := register(t, c, 1, storage)
	office, _ := register(t, client(t, nil), 7, ids.NewStorageID())
	tenure, ok, err := c.AcquireController(t.Context(), office.BrokerID(), office.Epoch())
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	entry := &Storage{BrokerID: 1, StorageID: storage, EligibleEpoch: reg.Epoch(), State: StorageActive}
	revision, err := c.DeclareEligible(t.Context(), tenure, entry)
	if err != nil {
		t.Fatal(err)
	}
	refused := func() {
		t.Helper()
		_, err := client(t, nil).Register(t.Context(), BrokerInfo{ID: 2, StorageID: storage})
		var foreign *ForeignStorageError
		if !errors.As(err, &foreign) || !errors.Is(err, ErrForeignStorage) || foreign.Owner != 1 || foreign.BrokerID != 2 || foreign.StorageID != storage {
			t.Fatalf("err = %v", err)
		}
		if v, _ := value(t, c, c.keys.broker(2)); v != "" {
			t.Fatal("it is registered all the same")
		}
	}
	refused()
	if err := stop(); err != nil { // also while the owner is away
		t.Fatal(err)
	}
	refused()
	register(t, client(t, nil), 1, storage)
	next := *entry
	next.Revision, next.State = revision, StorageDecommissioned
	if _, err := c.SetStorageState(t.Context(), tenure, &next); err != nil {
		t.Fatal(err)
	}
	register(t, client(t, nil), 2, storage) // what a broker that is gone has left may be used by another
}

func TestTakeOverOfTheSameStorage(t *testing.T) {
	storage := ids.NewStorageID()
	c := client(t, nil)
	old, err := c.Register(t.Context(), BrokerInfo{ID: 1, StorageID: storage})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	start(t, func(ctx context.Context) error {
		err := old.Run(ctx)
		ended <- err
		return err
	})
	fresh, stop := register(t, client(t, nil), 1, storage)
	closed(t, old.Lost(), "the loss of the old registration")
	err = <-ended
	var superseded *SupersededError
	if !errors.As(err, &superseded) || !errors.Is(err, ErrSuperseded) || superseded.Epoch != old.Epoch() || superseded.New != fresh.Epoch() {
		t.Errorf("Run = %v", err)
	}
	if !errors.Is(old.Err(), ErrSuperseded) || fresh.Err() != nil || fresh.Epoch() <= old.Epoch() {
		t.Errorf("old: %v at %d, fresh: %v at %d", old.Err(), old.Epoch(), fresh.Err(), fresh.Epoch())
	}
	// The loser's end must not take the winner's key away.
	if _, revision := value(t, c, c.keys.broker(1)); revision != fresh.Epoch() {
		t.Errorf("the key is at %d, the registration at %d", revision, fresh.Epoch())
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	if v, _ := value(t, c, c.keys.broker(1)); v != "" {
		t.Error("a stopped broker is still registered")
	}
}

// TestTakeOverIsSeenWithoutAWatch: the beat finds it as well, although the old lease lives on.
func TestTakeOverIsSeenWithoutAWatch(t *testing.T) {
	storage := ids.NewStorageID()
	c := client(t, nil)
	old, err := c.Register(t.Context(), BrokerInfo{ID: 1, StorageID: storage})
	if err != nil {
		t.Fatal(err)
	}
	if lapsed, err := old.beat(t.Context()); lapsed || err != nil {
		t.Fatalf("beat = %v, %v", lapsed, err)
	}
	register(t, c, 1, storage)
	if _, err := old.beat(t.Context()); !errors.Is(err, ErrSuperseded) {
		t.Errorf("beat after a take-over = %v", err)
	}
	closed(t, old.Lost(), "the loss")
}

func TestLapsedLeaseRegistersAnew(t *testing.T) {
	c := client(t, nil)
	cache := follow(t, c)
	r, _ := register(t, c, 1, ids.NewStorageID())
	before := r.Epoch()
	lapse(t, c, r)
	s := wait(t, cache, func(s *State) bool {
		b, ok := s.Broker(1)
		return ok && b.Epoch > before
	})
	b, _ := s.Broker(1)
	if got := r.Epoch(); b.Epoch != got && got != before {
		t.Errorf("registered at %d, registration says %d", b.Epoch, got)
	}
	if err := r.Err(); err != nil {
		t.Errorf("a lapsed lease alone ended the registration: %v", err)
	}
}

// TestLapseThenTakeOverAndLapse: somebody was eligible under the id meanwhile and is gone again; the key's absence must not hide it.
func TestLapseThenTakeOverAndLapse(t *testing.T) {
	c := client(t, nil)
	storage := ids.NewStorageID()
	old, err := c.Register(t.Context(), BrokerInfo{ID: 1, StorageID: storage})
	if err != nil {
		t.Fatal(err)
	}
	_, stop := register(t, c, 2, ids.NewStorageID())
	defer func() { _ = stop() }()
	tenure, ok, err := c.AcquireController(t.Context(), old.BrokerID(), old.Epoch())
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	other, stopOther := register(t, c, 1, storage)
	s := &Storage{BrokerID: 1, StorageID: storage, EligibleEpoch: other.Epoch(), State: StorageActive}
	if _, err := c.DeclareEligible(t.Context(), tenure, s); err != nil {
		t.Fatal(err)
	}
	if err := stopOther(); err != nil {
		t.Fatal(err)
	}
	if err := old.register(t.Context()); !errors.Is(err, ErrSuperseded) {
		t.Errorf("registering anew = %v", err)
	}
}

// TestRegisterLostAnswer: the registration is adopted, not taken for somebody else's.
func TestRegisterLostAnswer(t *testing.T) {
	f := &faults{}
	c := client(t, f)
	f.next(lost, delayed)
	r, _ := register(t, c, 1, ids.NewStorageID())
	f.deliver(t)
	if _, revision := value(t, c, c.keys.broker(1)); revision != r.Epoch() {
		t.Errorf("the key is at %d, the registration at %d", revision, r.Epoch())
	}
	if v := gauge(t, c.metrics.registration); v != float64(r.Epoch()) {
		t.Errorf("metric = %v, epoch %d", v, r.Epoch())
	}
}

// TestLeaseIsKeptAlive over more than its TTL.
func TestLeaseIsKeptAlive(t *testing.T) {
	t.Parallel()
	c := client(t, nil)
	r, _ := register(t, c, 1, ids.NewStorageID())
	epoch := r.Epoch()
	timer := time.NewTimer(3 * time.Second)
	defer timer.Stop()
	<-timer.C
	resp, err := c.etcd.TimeToLive(t.Context(), clientv3.LeaseID(r.LeaseID()))
	if err != nil || resp.TTL <= 0 || r.Epoch() != epoch {
		t.Errorf("after 3s with a TTL of 2s: %v, %v, epoch %d → %d", resp, err, epoch, r.Epoch())
	}
}

func TestRegisterRefusesNonsense(t *testing.T) {
	c := client(t, nil)
	for _, info := range []BrokerInfo{{ID: -1, StorageID: ids.NewStorageID()}, {ID: 1}} {
		if _, err := c.Register(t.Context(), info); !errors.Is(err, ErrInvalidArgument) {
			t.Errorf("Register(%+v) = %v", info, err)
		}
	}
}
