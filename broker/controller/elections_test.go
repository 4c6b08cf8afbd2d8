package controller

import (
	"errors"
	"testing"

	"runnel.dev/runnel/broker/metadata"
)

func TestPreferredElectionOnRequest(t *testing.T) {
	ref := refOf(0)
	for name, tc := range map[string]struct {
		c      metadata.Contents
		in     Input
		leader int32 // 0: nothing to do
		want   error
	}{
		"it leads":             {wide(3, 3, part(0, 1, 2, 3)), Input{}, 0, nil},
		"it is displaced":      {wide(3, 3, leader(part(0, 1, 2, 3), 2)), Input{}, 1, nil},
		"it is not in sync":    {wide(3, 3, leader(inSync(part(0, 1, 2, 3), 2, 3), 2)), Input{}, 0, ErrNotInSync},
		"it is suspected":      {wide(3, 3, leader(part(0, 1, 2, 3), 2)), suspects(1), 0, ErrWrongState},
		"it is away":           {without(wide(3, 3, leader(part(0, 1, 2, 3), 2)), 1), Input{}, 0, ErrWrongState},
		"the partition is new": {wide(3, 3, changed(part(0, 1, 2, 3), func(p *metadata.Partition) { p.Leader, p.LeaderEpoch = -1, 0 })), Input{}, 0, ErrWrongState},
		"there is none":        {wide(3, 3), Input{}, 0, ErrUnknownPartition},
	} {
		t.Run(name, func(t *testing.T) {
			_, next, err := planPreferred(metadata.NewState(tc.c), &tc.in, ref)
			if !errors.Is(err, tc.want) || (err == nil) != (tc.want == nil) {
				t.Fatalf("%v, want %v", err, tc.want)
			}
			if (next != nil) != (tc.leader != 0) || next != nil && (next.Leader != tc.leader || next.LeaderEpoch != 6) {
				t.Errorf("%+v", next)
			}
		})
	}
}

func TestUncleanElection(t *testing.T) {
	ref := refOf(0)
	stranded := func() metadata.Contents { return without(wide(4, 3, inSync(part(0, 1, 2, 3), 1)), 1) }
	for name, tc := range map[string]struct {
		c      metadata.Contents
		in     Input
		broker int32
		want   error
	}{
		"nobody in sync is there":                   {stranded(), Input{}, 2, nil},
		"the leader is well":                        {wide(3, 3, inSync(part(0, 1, 2, 3), 1)), Input{}, 2, ErrWrongState},
		"the leader is a suspect":                   {wide(3, 3, inSync(part(0, 1, 2, 3), 1)), suspects(1), 2, nil},
		"somebody in sync can lead":                 {without(wide(3, 3, inSync(part(0, 1, 2, 3), 1, 3)), 1), Input{}, 2, ErrWrongState},
		"no replica":                                {stranded(), Input{}, 4, ErrNotInSync},
		"the one to elect is away":                  {stranded(), Input{}, 1, ErrWrongState},
		"the one to elect is suspected":             {stranded(), suspects(2), 2, ErrWrongState},
		"unknown broker":                            {stranded(), Input{}, 9, ErrUnknownBroker},
		"unknown partition":                         {without(wide(3, 3), 1), Input{}, 2, ErrUnknownPartition},
		"the log of the one to elect is damaged":    {damaged(stranded(), 2), Input{}, 2, ErrWrongState},
		"the storage of the one to elect is fenced": {inState(stranded(), 2, metadata.StorageFenced), Input{}, 2, ErrWrongState},
	} {
		t.Run(name, func(t *testing.T) {
			err := CheckUnclean(metadata.NewState(tc.c), tc.in, ref, tc.broker)
			if !errors.Is(err, tc.want) || (err == nil) != (tc.want == nil) {
				t.Errorf("%v, want %v", err, tc.want)
			}
		})
	}
	s := metadata.NewState(stranded())
	if got, err := ChooseUnclean(s, Input{}, ref); got != 2 || err != nil {
		t.Errorf("%d, %v", got, err)
	}
	in := Input{Ends: map[metadata.PartitionRef]map[int32]End{ref: {2: {4, 100}, 3: {5, 1}}}}
	if got, err := ChooseUnclean(s, in, ref); got != 3 || err != nil {
		t.Errorf("%d, %v: broker 3 has the later epoch", got, err)
	}
	if got, err := ChooseUnclean(metadata.NewState(wide(3, 3, part(0, 1, 2, 3))), Input{}, ref); got != metadata.NoLeader || !errors.Is(err, ErrWrongState) {
		t.Errorf("%d, %v", got, err)
	}
}

func damaged(c metadata.Contents, id int32) metadata.Contents {
	st := *c.Storages[id-1]
	st.Marks = []metadata.Mark{{Partition: refOf(0), Kind: metadata.MarkQuarantined}}
	c.Storages[id-1] = &st
	return c
}
