package metadata

import (
	"context"
	"fmt"
)

// Tenure is a controller's right to act: every write of the controller compares its epoch.
type Tenure struct {
	BrokerID    int32
	BrokerEpoch int64
	// Epoch is the controller epoch.
	Epoch int64
}

// ControllerFree reports whether a registration may take the controller key: nobody has it, or the registration that has it is
// gone or was replaced. The same broker under a new registration has to take it over like any other.
func ControllerFree(s *State) bool {
	c := s.Controller()
	if c == nil {
		return true
	}
	b, alive := s.Broker(c.BrokerID)
	return !alive || b.Epoch != c.BrokerEpoch
}

// AcquireController takes the controller key for a registration if it is free: nobody has it (named nil), or the registration that has it
// is gone.
func (b Builder) AcquireController(named *ControllerInfo, reg RegRef) (Tx, error) {
	key := b.keys.controller()
	compares := []Compare{b.alive(reg), absent(key)}
	if named != nil {
		free := Compare{Key: b.keys.broker(named.BrokerID), Revision: named.BrokerEpoch, Not: true}
		compares = []Compare{b.alive(reg), unchanged(key, named.Epoch), free}
	}
	value, err := encodeController(reg.BrokerID, reg.Epoch)
	return write("acquire_controller", key, value, compares...), err
}

// AcquireController takes the controller key for a registration, if it is free by etcd's own state at that moment. ok is false when
// somebody else has it, or when the registration is not alive any more.
func (c *Client) AcquireController(ctx context.Context, brokerID int32, brokerEpoch int64) (t Tenure, ok bool, err error) {
	resp, err := c.get(ctx, "controller_look", c.keys.controller())
	if err != nil {
		return Tenure{}, false, err
	}
	var named *ControllerInfo
	if len(resp.Kvs) == 1 {
		if named, err = decodeController(resp.Kvs[0]); err != nil {
			return Tenure{}, false, err
		}
		if named.BrokerID == brokerID && named.BrokerEpoch == brokerEpoch {
			return Tenure{BrokerID: brokerID, BrokerEpoch: brokerEpoch, Epoch: named.Epoch}, true, nil
		}
	}
	tx, err := c.build.AcquireController(named, RegRef{BrokerID: brokerID, Epoch: brokerEpoch})
	if err != nil {
		return Tenure{}, false, err
	}
	out, err := c.commit(ctx, tx)
	if err != nil || !out.Applied {
		return Tenure{}, false, err
	}
	return Tenure{BrokerID: brokerID, BrokerEpoch: brokerEpoch, Epoch: out.Revision}, true, nil
}

// TakeController takes the controller key from the one that was seen to have it (nil: nobody), although its registration may be alive:
// witnesses agree that it does not act. It compares that very tenure and the own registration.
func (b Builder) TakeController(seen *ControllerInfo, reg RegRef) (Tx, error) {
	key := b.keys.controller()
	var revision int64
	if seen != nil {
		revision = seen.Epoch
	}
	value, err := encodeController(reg.BrokerID, reg.Epoch)
	return write("take_controller", key, value, unchanged(key, revision), b.alive(reg)), err
}

// TakeController takes the controller key from the tenure that was seen, although that broker's registration lives. The one that is deposed
// can change nothing any more: all its writes compare the key. ok is false when the key was taken by somebody else meanwhile, or when the
// own registration is over. When seen is this registration's own tenure, it is returned as it is.
func (c *Client) TakeController(ctx context.Context, reg *Registration, seen *ControllerInfo) (t Tenure, ok bool, err error) {
	ref := reg.Ref()
	if seen != nil && seen.BrokerID == ref.BrokerID && seen.BrokerEpoch == ref.Epoch {
		return Tenure{BrokerID: ref.BrokerID, BrokerEpoch: ref.Epoch, Epoch: seen.Epoch}, true, nil
	}
	tx, err := c.build.TakeController(seen, ref)
	if err != nil {
		return Tenure{}, false, err
	}
	out, err := c.commit(ctx, tx)
	if err != nil || !out.Applied {
		return Tenure{}, false, err
	}
	return Tenure{BrokerID: ref.BrokerID, BrokerEpoch: ref.Epoch, Epoch: out.Revision}, true, nil
}

func deposed(t Tenure) error {
	return fmt.Errorf("%w: controller epoch %d of broker %d is over", ErrNotController, t.Epoch, t.BrokerID)
}
