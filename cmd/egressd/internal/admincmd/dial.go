package admincmd

import "context"

// A Client asks the operator's listener, for commands in a package of their own.
type Client = client

// Dial finds the operator's listener of a policy. It connects to nothing yet.
func Dial(path string) (*Client, error) { return dial(path) }

// Ask sends a request without a body and reads the answer into v. Other answers than those of wanted are errors.
func (c *client) Ask(ctx context.Context, method, path string, v any, wanted ...int) (int, error) {
	return c.ask(ctx, method, path, v, wanted...)
}
