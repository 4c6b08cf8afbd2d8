package objectstore

import (
	"context"
	"iter"
)

// ListRequest asks for one page.
type ListRequest struct {
	// Prefix is what the keys begin with; "" lists everything. It is not a
	// directory: "a" matches "ab". It has to pass CheckPrefix.
	Prefix string
	// After leaves out all keys up to and including this one; "" begins at the
	// first.
	After string
	// Limit is the number of objects on the page, from 1 to MaxListLimit; 0
	// stands for MaxListLimit.
	Limit int
}

// Normalize checks a request and fills in the default limit; its errors are
// ErrInvalidKey and ErrInvalidArgument.
func (r ListRequest) Normalize() (ListRequest, error) {
	if err := CheckPrefix(r.Prefix); err != nil {
		return r, err
	}
	if r.After != "" {
		if err := CheckKey(r.After); err != nil {
			return r, err
		}
	}
	if r.Limit < 0 || r.Limit > MaxListLimit {
		return r, argument("limit", r.Limit, "1 to %d, or 0 for the most", MaxListLimit)
	}
	if r.Limit == 0 {
		r.Limit = MaxListLimit
	}
	return r, nil
}

// Page is a part of a listing.
type Page struct {
	// Objects are in the byte order of their keys, without checksums.
	Objects []Info
	// More tells that the next page, after the last key of this one, may have
	// objects too. A page with More is not empty.
	More bool
}

// All lists everything with a prefix, page after page of pageSize objects (0:
// MaxListLimit), holding one page in memory. It ends with the first error,
// whose Info is empty. Objects that are put or deleted meanwhile may or may
// not appear; none appears twice.
func All(ctx context.Context, s Store, prefix string, pageSize int) iter.Seq2[Info, error] {
	return func(yield func(Info, error) bool) {
		req := ListRequest{Prefix: prefix, Limit: pageSize}
		for {
			page, err := s.List(ctx, req)
			if err != nil {
				yield(Info{}, err)
				return
			}
			for _, info := range page.Objects {
				if !yield(info, nil) {
					return
				}
			}
			if !page.More || len(page.Objects) == 0 {
				return
			}
			req.After = page.Objects[len(page.Objects)-1].Key
		}
	}
}
