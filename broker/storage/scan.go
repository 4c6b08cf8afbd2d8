package storage

import (
	"fmt"
	"path/filepath"
	"strings"

	"runnel.dev/runnel/internal/ids"
	"runnel.dev/runnel/internal/vfs"
)

// Suffixes of a partition directory that is not in place (yet, or any more). deleted and damaged are followed by a log ID.
const (
	recoveringSuffix = ".recovering"
	deletedInfix     = ".deleted."
	damagedInfix     = ".damaged."
)

// leftover is a directory that an interrupted operation left, or that a recovery set aside.
type leftover struct {
	key   partitionKey
	logID ids.LogID // of deleted and damaged directories
	path  string
}

// contents is what a data directory holds, by name only.
type contents struct {
	partitions map[partitionKey]string // directories
	recovering []leftover
	deleted    []leftover
	damaged    []leftover
	empty      []string // directories of topics with nothing in them
	foreign    []string // paths of what is not ours
}

// scanDataDir lists dir without reading any file.
func scanDataDir(fsys vfs.FS, dir string) (contents, error) {
	c := contents{partitions: map[partitionKey]string{}}
	entries, err := fsys.ReadDir(dir)
	if err != nil {
		return c, err
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name)
		id, err := ids.ParseTopicID(e.Name)
		switch {
		case !e.IsDir && rootFiles[e.Name]:
		case !e.IsDir || err != nil:
			c.foreign = append(c.foreign, path)
		default:
			if err := c.scanTopic(fsys, id, path); err != nil {
				return c, err
			}
		}
	}
	return c, nil
}

func (c *contents) scanTopic(fsys vfs.FS, id ids.TopicID, dir string) error {
	entries, err := fsys.ReadDir(dir)
	if err != nil {
		return err
	}
	if len(entries) == 0 {
		c.empty = append(c.empty, dir)
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name)
		if !e.IsDir || !c.addPartition(id, e.Name, path) {
			c.foreign = append(c.foreign, path)
		}
	}
	return nil
}

func (c *contents) addPartition(id ids.TopicID, name, path string) bool {
	number, suffix := name, ""
	if i := strings.IndexByte(name, '.'); i >= 0 {
		number, suffix = name[:i], name[i:]
	}
	p, ok := parsePartition(number)
	if !ok {
		return false
	}
	l := leftover{key: partitionKey{id, p}, path: path}
	var list *[]leftover
	switch {
	case suffix == "":
		c.partitions[l.key] = path
		return true
	case suffix == recoveringSuffix:
		list = &c.recovering
	case strings.HasPrefix(suffix, deletedInfix):
		list, suffix = &c.deleted, suffix[len(deletedInfix):]
	case strings.HasPrefix(suffix, damagedInfix):
		list, suffix = &c.damaged, suffix[len(damagedInfix):]
	default:
		return false
	}
	if list == &c.deleted || list == &c.damaged {
		logID, err := ids.ParseLogID(suffix)
		if err != nil {
			return false
		}
		l.logID = logID
	}
	*list = append(*list, l)
	return true
}

func topicDir(root string, id ids.TopicID) string { return filepath.Join(root, id.String()) }

func partitionDir(root string, k partitionKey) string {
	return filepath.Join(topicDir(root, k.TopicID), fmt.Sprint(k.Partition))
}
