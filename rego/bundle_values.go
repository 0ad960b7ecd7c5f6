package rego

import (
	"encoding/json"
	"fmt"

	"github.com/open-policy-agent/opa/v1/bundle"
)

// maxBundleValues bounds the values of all data of a bundle together.
const maxBundleValues = 1 << 20

// countValues refuses data of more values than a bundle may have.
//
// Trap: a signature covers what data says, not its bytes, so data has to be read before
// anybody knows whether it was signed. A few dozen KiB of compressed brackets are
// millions of values, each of which takes hundreds of bytes of memory.
func (files bundleFiles) countValues() error {
	left := maxBundleValues
	for _, name := range files.names() {
		if !bundle.IsStructuredDoc(name) {
			continue
		}
		if left -= valuesMost(files[name]); left < 0 {
			return fmt.Errorf("%q and the data before it may hold more than %d values", name, maxBundleValues)
		}
	}
	return nil
}

// valuesMost returns a number of values that a text of JSON or YAML has at most. It is
// near the true one for JSON, and counts some that are none in the texts of YAML. It
// reads no structure, and takes no memory.
func valuesMost(text []byte) (n int) {
	exact := json.Valid(text)
	quoted := false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case exact && c == '"':
			quoted = !quoted
		case quoted && c == '\\':
			i++
		case quoted:
		case c == '[', c == '{', c == ',': // one behind each
			n++
		case exact:
		case c == '-', c == ':', c == '?': // those of YAML, without a look at what is text
			n++
		}
	}
	return n + 1
}
