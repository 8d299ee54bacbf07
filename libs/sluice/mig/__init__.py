"""What MIG hardware allows: profiles, placements, layouts, counts, the transition table. Pure, and for any model."""
