package file

import (
	"path/filepath"
	"strings"

	"runnel.dev/runnel/tiering/objectstore"
)

// Marks in front of names, see the package comment. They keep directories and
// objects apart and make every name an ordinary one.
const (
	dirMark    = "+"
	objectMark = "="
)

// objectPath returns the directory and the full name of an object's file.
func (s *Store) objectPath(key string) (dir, name string) {
	cut := strings.LastIndexByte(key, '/') + 1
	dir = s.dirPath(key[:cut])
	return dir, filepath.Join(dir, objectMark+key[cut:])
}

// dirPath returns the directory of the keys that begin with a prefix and have
// no slash behind it. The prefix is empty or ends with a slash.
func (s *Store) dirPath(prefix string) string {
	path := filepath.Join(s.root, objectsName)
	if prefix == "" {
		return path
	}
	parts := strings.Split(strings.TrimSuffix(prefix, "/"), "/")
	for i, part := range parts {
		parts[i] = dirMark + part
	}
	return filepath.Join(path, filepath.Join(parts...))
}

// keyOf is the inverse for one entry of the directory of a prefix: the key of
// an object, or the longer prefix of a directory, which ends with a slash. ok is
// false for entries that are not of a store.
func keyOf(prefix, name string, isDir bool) (key string, ok bool) {
	if isDir {
		segment, ok := strings.CutPrefix(name, dirMark)
		key = prefix + segment
		return key + "/", ok && objectstore.CheckKey(key) == nil
	}
	segment, ok := strings.CutPrefix(name, objectMark)
	key = prefix + segment
	return key, ok && objectstore.CheckKey(key) == nil
}
