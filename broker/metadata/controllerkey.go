package metadata

import (
	"context"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"
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

// AcquireController takes the controller key for a registration, if it is free by etcd's own state at that moment. ok is false when
// somebody else has it, or when the registration is not alive any more.
func (c *Client) AcquireController(ctx context.Context, brokerID int32, brokerEpoch int64) (t Tenure, ok bool, err error) {
	key := c.keys.controller()
	resp, err := c.get(ctx, "controller_look", key)
	if err != nil {
		return Tenure{}, false, err
	}
	compares := []clientv3.Cmp{absent(key)}
	if len(resp.Kvs) == 1 {
		named, err := decodeController(resp.Kvs[0])
		if err != nil {
			return Tenure{}, false, err
		}
		if named.BrokerID == brokerID && named.BrokerEpoch == brokerEpoch {
			return Tenure{BrokerID: brokerID, BrokerEpoch: brokerEpoch, Epoch: named.Epoch}, true, nil
		}
		compares = []clientv3.Cmp{
			unchanged(key, named.Epoch),
			clientv3.Compare(clientv3.ModRevision(c.keys.broker(named.BrokerID)), "!=", named.BrokerEpoch),
		}
	}
	value, err := encodeController(brokerID, brokerEpoch)
	if err != nil {
		return Tenure{}, false, err
	}
	out, err := c.commit(ctx, txn{
		op: "acquire_controller", compares: append(compares, unchanged(c.keys.broker(brokerID), brokerEpoch)),
		then: []clientv3.Op{clientv3.OpPut(key, value)}, otherwise: []clientv3.Op{clientv3.OpGet(key)}, mine: wrote(value),
	})
	if err != nil || !out.ok {
		return Tenure{}, false, err
	}
	return Tenure{BrokerID: brokerID, BrokerEpoch: brokerEpoch, Epoch: out.revision}, true, nil
}

func (c *Client) guard(t Tenure) []clientv3.Cmp {
	return []clientv3.Cmp{unchanged(c.keys.controller(), t.Epoch)}
}

func deposed(t Tenure) error {
	return fmt.Errorf("%w: controller epoch %d of broker %d is over", ErrNotController, t.Epoch, t.BrokerID)
}
