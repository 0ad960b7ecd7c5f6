# says: that is Gatekeeper's input
package egress

deny contains {"rule": "names"} if not input.review.object.metadata.labels.owner
