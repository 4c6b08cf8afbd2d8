package namespace

// Kind is the kind of a change.
type Kind uint8

// The kinds of changes.
const (
	Link   Kind = iota + 1 // a new file or directory got the name To
	Unlink                 // the name From went away
	Move                   // From became To, replacing what had that name
)

// Entry is a name in a directory.
type Entry[T any] struct {
	Dir  *Node[T]
	Name string
}

// Op is one change to one or two directories.
type Op[T any] struct {
	Kind Kind
	Node *Node[T]
	From Entry[T] // Unlink and Move
	To   Entry[T] // Link and Move

	deps []*Op[T] // earlier changes that this one cannot survive without
	done bool     // committed
}

func (op *Op[T]) touches(dir *Node[T]) bool { return op.From.Dir == dir || op.To.Dir == dir }

// belongsTo tells whether a sync of dir has to commit the change.
func (op *Op[T]) belongsTo(dir *Node[T]) bool {
	if op.Kind == Unlink {
		return op.From.Dir == dir
	}
	return op.To.Dir == dir
}

func (t *Tree[T]) doLink(n *Node[T], dir *Node[T], name string) {
	n.parent, n.name = dir, name
	dir.children[name] = n
	op := &Op[T]{Kind: Link, Node: n, To: Entry[T]{dir, name}}
	n.link = op
	t.record(op)
}

func (t *Tree[T]) doUnlink(n *Node[T]) {
	op := &Op[T]{Kind: Unlink, Node: n, From: Entry[T]{n.parent, n.name}}
	if n.dir {
		for _, earlier := range t.pending {
			if earlier.touches(n) {
				op.deps = append(op.deps, earlier)
			}
		}
	}
	delete(n.parent.children, n.name)
	n.parent = nil
	t.record(op)
}

func (t *Tree[T]) doMove(n, dir *Node[T], name string, replaced *Node[T]) {
	op := &Op[T]{Kind: Move, Node: n, From: Entry[T]{n.parent, n.name}, To: Entry[T]{dir, name}}
	if dir != n.parent {
		for d := dir; d != nil; d = d.parent {
			op.dependOn(t.byNode[d])
		}
	}
	if replaced != nil {
		replaced.parent = nil
	}
	delete(n.parent.children, n.name)
	n.parent, n.name = dir, name
	dir.children[name] = n
	t.record(op)
}

func (op *Op[T]) dependOn(earlier *Op[T]) {
	if earlier != nil && !earlier.done {
		op.deps = append(op.deps, earlier)
	}
}

func (t *Tree[T]) record(op *Op[T]) {
	for _, entry := range []Entry[T]{op.From, op.To} {
		if entry.Dir == nil {
			continue
		}
		op.dependOn(t.byEntry[entry])
		if t.cfg.ParentFirst {
			op.dependOn(entry.Dir.link)
		}
		t.byEntry[entry] = op
	}
	if op.Kind == Unlink {
		delete(t.byNode, op.Node)
	} else {
		t.byNode[op.Node] = op
	}
	t.pending = append(t.pending, op)
}

// Pending is the number of changes that a power failure could undo.
func (t *Tree[T]) Pending() int { return len(t.pending) }

// SyncDir commits the changes of a directory, and those that they depend on,
// in order: apply makes each durable. It stops at the first error of apply;
// that change and the later ones stay pending.
func (t *Tree[T]) SyncDir(name string, apply func(*Op[T]) error) error {
	dir, err := t.Lookup(name)
	if err != nil {
		return err
	}
	if err := t.load(dir); err != nil {
		return err
	}
	due := map[*Op[T]]bool{}
	if t.cfg.ParentFirst {
		t.markDue(due, dir.link)
	}
	for _, op := range t.pending {
		if op.belongsTo(dir) {
			t.markDue(due, op)
		}
	}
	if len(due) == 0 {
		return nil
	}
	return t.commit(func(op *Op[T]) bool { return due[op] }, apply)
}

// SyncAll commits every change, as SyncDir does for one directory.
func (t *Tree[T]) SyncAll(apply func(*Op[T]) error) error {
	return t.commit(func(*Op[T]) bool { return true }, apply)
}

func (t *Tree[T]) markDue(due map[*Op[T]]bool, op *Op[T]) {
	if op == nil || op.done || due[op] {
		return
	}
	due[op] = true
	for _, dep := range op.deps {
		t.markDue(due, dep)
	}
}

func (t *Tree[T]) commit(due func(*Op[T]) bool, apply func(*Op[T]) error) error {
	var failed error
	rest := t.pending[:0:0]
	for _, op := range t.pending {
		if failed == nil && due(op) {
			if failed = apply(op); failed == nil {
				t.forget(op)
				continue
			}
		}
		rest = append(rest, op)
	}
	t.pending = rest
	return failed
}

// forget ends the life of a committed change in the log.
func (t *Tree[T]) forget(op *Op[T]) {
	op.done, op.deps = true, nil
	for _, entry := range []Entry[T]{op.From, op.To} {
		if t.byEntry[entry] == op {
			delete(t.byEntry, entry)
		}
	}
	if t.byNode[op.Node] == op {
		delete(t.byNode, op.Node)
	}
	if op.Node.link == op {
		op.Node.link = nil
	}
}

// Survivors picks the pending changes that a power failure leaves: keep is
// asked, in order, for each one whose dependencies were kept.
func (t *Tree[T]) Survivors(keep func() bool) []*Op[T] {
	kept := map[*Op[T]]bool{}
	var ops []*Op[T]
	for _, op := range t.pending {
		possible := true
		for _, dep := range op.deps {
			possible = possible && (dep.done || kept[dep])
		}
		if possible && keep() {
			kept[op] = true
			ops = append(ops, op)
		}
	}
	return ops
}
