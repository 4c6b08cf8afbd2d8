package broker

import (
	"fmt"
	"reflect"
	"slices"
	"sort"
	"strconv"
	"strings"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/broker/config"
	"runnel.dev/runnel/broker/metadata"
	"runnel.dev/runnel/broker/server"
)

// BrokerStatus implements server.ClusterAdmin.
func (a *clusterAdmin) BrokerStatus(st *runnelv1.BrokerStatus) {
	s, v := a.p.cache.Snapshot(), a.p.beats.View()
	if e, ok := s.Storage(st.GetId()); ok {
		st.State = brokerState(e.State)
		st.Damaged = int32(len(e.Marks)) // partitions
	}
	st.Eligible = s.Eligible(st.GetId())
	st.Suspect = slices.Contains(v.Confirmed, st.GetId())
	st.Stopping = slices.Contains(v.Stopping, st.GetId())
	if st.GetId() != a.p.reg.BrokerID() {
		return
	}
	st.SizeBytes = 0
	for _, l := range a.p.store.Logs() {
		st.SizeBytes += l.Size()
	}
	u := a.p.store.DiskUsage()
	st.FreeBytes, st.TotalBytes = int64(u.Free), int64(u.Total) // a volume's bytes fit
	st.BytesInPerSecond, st.BytesOutPerSecond = 0, 0
	for _, r := range a.m.all() {
		st.BytesInPerSecond += r.BytesIn
		st.BytesOutPerSecond += r.BytesOut
	}
}

// Rates implements server.ClusterAdmin.
func (a *clusterAdmin) Rates(ref server.PartitionRef) (server.Rates, bool) {
	r, ok := a.m.rate(metadata.PartitionRef(ref))
	return server.Rates{RecordsIn: r.RecordsIn, BytesIn: r.BytesIn, BytesOut: r.BytesOut}, ok
}

// DescribeConfig implements server.ClusterAdmin.
func (a *clusterAdmin) DescribeConfig() []*runnelv1.ConfigEntry {
	return describeConfig(a.b.cfg)
}

// describeConfig lists settings by their names in the file. There is no secret among them: keys are named by path.
func describeConfig(c config.Config) []*runnelv1.ConfigEntry {
	now, usual := map[string]string{}, map[string]string{}
	flatten("", reflect.ValueOf(c), now)
	flatten("", reflect.ValueOf(config.Default()), usual)
	out := make([]*runnelv1.ConfigEntry, 0, len(now))
	for name, value := range now {
		was, ok := usual[name]
		out = append(out, &runnelv1.ConfigEntry{Name: name, Value: value, Changed: !ok || was != value})
	}
	sort.Slice(out, func(i, j int) bool { return out[i].GetName() < out[j].GetName() })
	return out
}

// flatten notes each single value below v under its dotted name.
func flatten(name string, v reflect.Value, into map[string]string) {
	if s, ok := reflect.TypeAssert[fmt.Stringer](v); ok {
		into[name] = s.String()
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			key, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("yaml"), ",")
			flatten(strings.TrimPrefix(name+"."+key, "."), v.Field(i), into)
		}
	case reflect.Slice:
		for i := range v.Len() {
			flatten(name+"["+strconv.Itoa(i)+"]", v.Index(i), into)
		}
	default:
		into[name] = fmt.Sprint(v.Interface())
	}
}
