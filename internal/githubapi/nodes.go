package githubapi

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
)

// MaxIDs is how many node ids one request may have.
const MaxIDs = 100

// CheckID reports whether text has the form of a node id. GitHub has old and new ones, and says that they are opaque.
func CheckID(text string) bool {
	return text != "" && len(text) <= 256 && !strings.ContainsFunc(text, func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && !strings.ContainsRune("_-+/=", c)
	})
}

// A Node is what GitHub says of a node id. The zero value is one that it does not know or that belongs to nothing.
type Node struct {
	Repo   string // "owner/name" in lower case, of what belongs to a repository
	Person bool   // it is a user or a team, and no bot
}

// whose asks for the repositories of nodes. GraphQL refuses one name for fields of which only some can be null, so each type has an alias.
const whose = `query($ids:[ID!]!){nodes(ids:$ids){__typename
...on Repository{self:nameWithOwner}
...on RepositoryNode{of:repository{nameWithOwner}}
...on Label{ofLabel:repository{nameWithOwner}}
...on Milestone{ofMilestone:repository{nameWithOwner}}
...on PullRequestReviewThread{ofThread:repository{nameWithOwner}}}}`

// AskNodes returns the body of a request that asks GitHub for the repositories of ids.
func AskNodes(ids []string) []byte {
	body, err := json.Marshal(map[string]any{"query": whose, "variables": map[string]any{"ids": ids}})
	if err != nil {
		return nil // texts always marshal
	}
	return body
}

var errAnswer = errors.New("the server did not say what the node ids are")

// ReadNodes reads the answer to [AskNodes]. Each id has a node in the result.
func ReadNodes(ids []string, answer []byte) (map[string]Node, error) {
	type repository struct{ NameWithOwner string }
	var a struct {
		Data struct {
			Nodes []*struct {
				Typename                           string `json:"__typename"`
				Self                               string
				Of, OfLabel, OfMilestone, OfThread *repository
			}
		}
	}
	if err := json.Unmarshal(answer, &a); err != nil || len(a.Data.Nodes) != len(ids) {
		return nil, errAnswer
	}
	all := make(map[string]Node, len(ids))
	for i, n := range a.Data.Nodes {
		if n == nil {
			all[ids[i]] = Node{}
			continue
		}
		node := Node{Repo: strings.ToLower(n.Self), Person: slices.Contains([]string{"User", "Mannequin", "Team"}, n.Typename)}
		for _, r := range []*repository{n.Of, n.OfLabel, n.OfMilestone, n.OfThread} {
			if r != nil && node.Repo == "" {
				node.Repo = strings.ToLower(r.NameWithOwner)
			}
		}
		all[ids[i]] = node
	}
	return all, nil
}
