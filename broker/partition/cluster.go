package partition

import (
	"runnel.dev/runnel/broker/log"
	"runnel.dev/runnel/broker/replica"
	"runnel.dev/runnel/internal/ids"
)

// RecordUpdate is a partition's record in the metadata together with this broker's own situation.
type RecordUpdate struct {
	// Record is not changed after the call. An older one than the known one is replaced by that.
	Record *replica.Record
	// BrokerEpoch is this broker's registration. Record is not older.
	BrokerEpoch int64
	// StorageID is the identity of this broker's data directory.
	StorageID ids.StorageID
	// Usable: the log can serve, and this process may act for the registration.
	Usable bool
	// Damage, when set, is why this broker cannot serve with what it has; requests are told that instead of who leads.
	Damage error
}

// machineLog shows a log to the machine.
type machineLog struct{ *log.Log }

var _ replica.Log = machineLog{}
