// Package names keeps what each sandbox knows of names: the addresses that stand for names there, and how much it may
// still ask. It decides, resolves and records nothing.
//
//	placeholders := names.Placeholders{Range: names.DefaultRange()}
//	addresses, ok := placeholders.Bind("ci", "example.com", busy)
//	name, isPlaceholder := placeholders.Name("ci", addresses.IPv4)
package names

import "sync"

// maxSandboxes bounds the sandboxes that have bindings of one kind.
const maxSandboxes = 4096

// A table has a T for each sandbox. Its zero value is empty; it is safe for concurrent use.
type table[T any] struct {
	mu        sync.Mutex // guards bySandbox
	bySandbox map[string]*T
}

func (t *table[T]) find(sandbox string) *T {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.bySandbox[sandbox]
}

// add returns the T of a sandbox, and makes one if there is none. It returns nil if the table is full.
func (t *table[T]) add(sandbox string) *T {
	t.mu.Lock()
	defer t.mu.Unlock()
	one := t.bySandbox[sandbox]
	if one == nil && len(t.bySandbox) < maxSandboxes {
		if t.bySandbox == nil {
			t.bySandbox = map[string]*T{}
		}
		one = new(T)
		t.bySandbox[sandbox] = one
	}
	return one
}

// Forget drops what is kept of a sandbox.
func (t *table[T]) Forget(sandbox string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.bySandbox, sandbox)
}
